package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"tangram.dev/operator/internal/plancli"

	api "tangram.dev/api/v1alpha2"
)

const containerSize = "size"

// sizeName is the name of the pod that reads the checkpoint.
func sizeName(d *api.MoEDeployment) string { return d.Name + "-size" }

// hasMemory says whether the memory per rank is known.
func hasMemory(d *api.MoEDeployment) bool {
	return !d.Spec.Memory.Weights.IsZero() && !d.Spec.Memory.KVCache.IsZero()
}

// sized says whether the memory per rank is known. If the spec omits it, a pod computes it from the checkpoint, and the
// operator writes it into the spec once, because pods of one world must agree. s: the obstacle, or the progress.
func (r *Reconciler) sized(ctx context.Context, d *api.MoEDeployment) (done bool, s *scene, err error) {
	if hasMemory(d) {
		return true, nil, nil
	}
	pod := &corev1.Pod{ObjectMeta: meta(d, sizeName(d), api.ComponentSize)}
	there, err := r.find(ctx, d, pod)
	if err != nil {
		return false, nil, err
	}
	if !there {
		wanted, err := r.sizePod(d)
		if err != nil {
			return false, nil, err
		}
		return false, &scene{sizing: "The operator creates a pod that reads the checkpoint."}, r.createNew(ctx, d, wanted, func() error { return nil })
	}
	switch pod.Status.Phase {
	case corev1.PodSucceeded:
		size := &plancli.CheckpointSize{}
		if err := json.Unmarshal([]byte(messageOf(pod)), size); err != nil || size.WeightsBytes == 0 {
			return false, &scene{refused: &refusal{api.ReasonPodsFailing, fmt.Sprintf("Pod %s returned an invalid size: %q.", pod.Name, clip(messageOf(pod), longestWords))}}, nil
		}
		return r.takeSize(ctx, d, pod, size)
	case corev1.PodFailed:
		again := r.KeepEnded // people can read the reason, and the next try may find a checkpoint
		s := &scene{refused: &refusal{api.ReasonInvalidSpec, fmt.Sprintf("The memory cannot be computed from the checkpoint: %s.", clip(messageOf(pod), longestMessage))}, again: again}
		if ended := endOf(pod); ended != nil && time.Since(ended.Time) > again {
			return false, s, r.remove(ctx, pod)
		}
		return false, s, nil
	case corev1.PodPending, corev1.PodRunning, corev1.PodUnknown:
	}
	problem, again, err := r.problemOf(ctx, pod)
	if err != nil {
		return false, nil, err
	}
	s = &scene{sizing: fmt.Sprintf("Pod %s reads the checkpoint.", pod.Name), again: again}
	if problem != nil {
		s.problems = append(s.problems, *problem)
	}
	return false, s, nil
}

// takeSize writes the pod's result into the spec.
func (r *Reconciler) takeSize(ctx context.Context, d *api.MoEDeployment, pod *corev1.Pod, size *plancli.CheckpointSize) (bool, *scene, error) {
	before := d.DeepCopy()
	m := &d.Spec.Memory
	if m.Weights.IsZero() {
		m.Weights = *resource.NewQuantity(int64(size.WeightsBytes), resource.BinarySI)
	}
	if m.KVCache.IsZero() {
		m.KVCache = *resource.NewQuantity(int64(size.KVBytes), resource.BinarySI)
	}
	if d.Spec.Tuning.GranuleRows == 0 {
		d.Spec.Tuning.GranuleRows = int32(size.GranuleRows)
	}
	if d.OnGPU() && d.Spec.Tuning.HandleSize == nil {
		d.Spec.Tuning.HandleSize = resource.NewQuantity(int64((size.ExpertBytes+hugePageBytes-1)/hugePageBytes*hugePageBytes), resource.BinarySI)
	}
	if err := r.Patch(ctx, d, locked(before)); err != nil {
		return false, nil, err
	}
	before = d.DeepCopy()
	d.Status.Memory = &api.MemoryStatus{}
	for _, item := range size.Items {
		d.Status.Memory.Budget = append(d.Status.Memory.Budget, api.MemoryItem{Item: item.Name, Bytes: int64(item.Bytes)})
	}
	if err := r.Status().Patch(ctx, d, locked(before)); err != nil {
		return false, nil, err
	}
	return true, nil, r.remove(ctx, pod)
}

// sizePod mounts the checkpoint as pods of ranks do, and computes the memory for all possible numbers of ranks.
func (r *Reconciler) sizePod(d *api.MoEDeployment) (*corev1.Pod, error) {
	low, high := ptr.Deref(d.Spec.MinReplicas, d.Spec.Replicas), ptr.Deref(d.Spec.MaxReplicas, 2*d.Spec.Replicas)
	var widths []string
	for _, n := range plancli.WidthsBetween(int(low), int(d.Spec.Replicas), int(high), int(max(d.Spec.RanksPerPod, 1))) {
		widths = append(widths, strconv.Itoa(n))
	}
	args := []string{"size-checkpoint", "--model=" + checkpointFolder(d), "--ranks=" + strings.Join(widths, ","), fmt.Sprintf("--ranks-per-pod=%d", max(d.Spec.RanksPerPod, 1)),
		fmt.Sprintf("--spare-banks=%d", d.Spec.Tuning.SpareBanks), fmt.Sprintf("--granule-rows=%d", d.Spec.Tuning.GranuleRows)}
	if d.SpecMode() != api.ModeTensor {
		args = append(args, "--lenient")
	}
	if d.OnGPU() || d.Spec.Memory.PageSize == api.Page2Mi {
		args = append(args, fmt.Sprintf("--page-bytes=%d", hugePageBytes))
	}
	asked := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("1Gi")}
	pod := &corev1.Pod{ObjectMeta: meta(d, sizeName(d), api.ComponentSize), Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: ptr.To(false), EnableServiceLinks: ptr.To(false), SecurityContext: restrictedPod(),
		Containers: []corev1.Container{{Name: containerSize, Image: r.Images.Operator, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"/bin/tangram-operator"}, Args: args,
			Resources: corev1.ResourceRequirements{Requests: asked, Limits: asked}, SecurityContext: restricted(),
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError, VolumeMounts: []corev1.VolumeMount{{Name: "models", MountPath: dirModels, ReadOnly: true}}}},
		Volumes: []corev1.Volume{modelsVolume(d)},
	}}
	template := d.Spec.Template.DeepCopy()
	template.Spec.ServiceAccountName = "" // not needed
	return pod, fromTemplate(template, &pod.ObjectMeta, &pod.Spec)
}

// messageOf returns the message of the only container of a pod that ended.
func messageOf(pod *corev1.Pod) string {
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Terminated != nil {
			return cmp.Or(c.State.Terminated.Message, fmt.Sprintf("exit code %d", c.State.Terminated.ExitCode))
		}
	}
	return cmp.Or(pod.Status.Message, "no container ran")
}

// endOf returns when the only container of a pod ended; nil: unknown.
func endOf(pod *corev1.Pod) *metav1.Time {
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Terminated != nil {
			return &c.State.Terminated.FinishedAt
		}
	}
	return nil
}
