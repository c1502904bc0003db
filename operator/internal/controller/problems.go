package controller

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	api "tangram.dev/api/v1alpha2"
)

// problem says why a pod does not start, or why it ended.
type problem struct {
	pod, reason, text string
}

// stuck are waiting reasons of containers that do not resolve by themselves.
var stuck = []string{"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError", "RegistryUnavailable",
	"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"}

// findProblem returns the problem of a pod, or nil.
func findProblem(p *corev1.Pod) *problem {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return &problem{p.Name, api.ReasonPodsUnschedulable, c.Message}
		}
	}
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil && slices.Contains(stuck, w.Reason) {
			return &problem{p.Name, api.ReasonPodsFailing, fmt.Sprintf("container %s: %s: %s", s.Name, w.Reason, clip(w.Message, longestWords))}
		}
	}
	if s := downContainer(p); s != nil && s.State.Terminated != nil {
		t := s.State.Terminated
		return &problem{p.Name, api.ReasonPodsFailing, fmt.Sprintf("container %s ended with exit code %d (%s): %s", s.Name, t.ExitCode, t.Reason, lastWords(t.Message))}
	}
	if p.Status.Phase == corev1.PodFailed {
		return &problem{p.Name, api.ReasonPodsFailing, fmt.Sprintf("%s: %s", p.Status.Reason, p.Status.Message)}
	}
	return nil
}

// downContainer returns a container that should run and has ended. Of several it returns the first that ended, because
// others end as a consequence.
func downContainer(p *corev1.Pod) *corev1.ContainerStatus {
	var found *corev1.ContainerStatus
	for i, s := range p.Status.InitContainerStatuses {
		if t := s.State.Terminated; t != nil && t.ExitCode != 0 {
			return &p.Status.InitContainerStatuses[i]
		}
	}
	for i := range p.Status.ContainerStatuses {
		s := &p.Status.ContainerStatuses[i]
		if at := downSince(s); !at.IsZero() && (found == nil || at.Before(downSince(found))) {
			found = s
		}
	}
	return found
}

// downSince returns when a container ended; zero: it runs, or never ran.
func downSince(s *corev1.ContainerStatus) time.Time {
	switch {
	case s.State.Terminated != nil:
		return s.State.Terminated.FinishedAt.Time
	case s.State.Waiting != nil && s.LastTerminationState.Terminated != nil: // the kubelet will start it again
		return s.LastTerminationState.Terminated.FinishedAt.Time
	}
	return time.Time{}
}

// runs says whether a container runs, according to the kubelet's last report.
func runs(p *corev1.Pod, container string) bool {
	i := slices.IndexFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == container })
	return i >= 0 && p.Status.ContainerStatuses[i].State.Running != nil
}

// finished says that Kubernetes starts no container in the pod again.
func finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded
}

// young is the age up to which a pod that ended would end again immediately.
const young = time.Minute

// ended says whether a pod is no longer of use: it finished, or one of its containers does not restart in place. It
// also says whether it can be replaced now: a pod that ended young stays for inspection first.
func (r *Reconciler) ended(p *corev1.Pod) (yes, replaceable bool) {
	down, at := downContainer(p), p.CreationTimestamp.Time
	if down != nil && downSince(down).After(at) {
		at = downSince(down)
	}
	if down == nil && !finished(p) {
		return false, false
	}
	if !finished(p) && time.Since(at) <= r.KeepEnded {
		return false, false // it may restart
	}
	return true, at.Sub(p.CreationTimestamp.Time) > young || time.Since(at) > r.KeepEnded
}
