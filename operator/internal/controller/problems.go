package controller

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	api "tangram.dev/api/v1alpha1"
)

// problem of a pod: why it does not start, or why it ended.
type problem struct {
	pod, reason, text string
}

// Reasons of a container that waits for something that will not come by itself.
var stuck = []string{"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError", "RegistryUnavailable",
	"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"}

// findProblem of a pod, or nil.
func findProblem(p *corev1.Pod) *problem {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return &problem{p.Name, api.ReasonPodsUnschedulable, c.Message}
		}
	}
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil && slices.Contains(stuck, w.Reason) {
			return &problem{p.Name, api.ReasonPodsFailing, fmt.Sprintf("container %s: %s: %s", s.Name, w.Reason, w.Message)}
		}
	}
	if s := endedContainer(p); s != nil {
		t := s.State.Terminated
		return &problem{p.Name, api.ReasonPodsFailing, fmt.Sprintf("container %s ended with exit code %d (%s): %s", s.Name, t.ExitCode, t.Reason, t.Message)}
	}
	if p.Status.Phase == corev1.PodFailed {
		return &problem{p.Name, api.ReasonPodsFailing, fmt.Sprintf("%s: %s", p.Status.Reason, p.Status.Message)}
	}
	return nil
}

// endedContainer: one that shall never end, and did; one that failed, if there is one, since
// others end because of it.
func endedContainer(p *corev1.Pod) *corev1.ContainerStatus {
	var found *corev1.ContainerStatus
	for i, s := range p.Status.InitContainerStatuses {
		if t := s.State.Terminated; t != nil && t.ExitCode != 0 {
			return &p.Status.InitContainerStatuses[i]
		}
	}
	for i, s := range p.Status.ContainerStatuses {
		t := s.State.Terminated
		if t == nil {
			continue
		}
		if found == nil || t.FinishedAt.Time.Before(found.State.Terminated.FinishedAt.Time) {
			found = &p.Status.ContainerStatuses[i]
		}
	}
	return found
}

// ended says whether a pod's ranks are gone for good.
func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded || endedContainer(p) != nil
}
