package controller

import (
	"context"
	"fmt"
	"path"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "tangram.dev/api/v1alpha2"
)

// DefaultNodeFolder is in /run: a reboot removes it and its sockets, and only root can create entries next to it.
const DefaultNodeFolder = "/run/tangram-node"

// namespaceAgain is how often the namespace's label is read. A watch would need rights to all namespaces.
const namespaceAgain = 10 * time.Second

// sharingError means that the world shares memory on its nodes but its namespace does not allow that.
type sharingError struct{ namespace, label string }

func (e *sharingError) Error() string {
	return fmt.Sprintf("spec.network.nodeMemorySharing is not allowed in namespace %s, so no pod is created: its label %s is %q and must be %q. "+
		"Ask the administrator of the namespace to set the label, or create a MoEDeployment with another name and without the field. Running pods continue to serve.",
		e.namespace, api.NodeMemorySharingLabel, e.label, api.NodeMemorySharingAllowed)
}

// checkSharing returns a sharingError if the namespace does not allow the world's pods to share memory.
func (r *Reconciler) checkSharing(ctx context.Context, d *api.MoEDeployment) error {
	if !d.SharesNodeMemory() {
		return nil
	}
	var namespace corev1.Namespace
	if err := r.APIReader.Get(ctx, client.ObjectKey{Name: d.Namespace}, &namespace); err != nil {
		return fmt.Errorf("check whether namespace %s allows spec.network.nodeMemorySharing: %w", d.Namespace, err)
	}
	if label := namespace.Labels[api.NodeMemorySharingLabel]; label != api.NodeMemorySharingAllowed {
		return &sharingError{d.Namespace, label}
	}
	return nil
}

// shareNode gives a pod of ranks the folder of its node that only agents of its world share. Its name is the
// MoEDeployment's UID, which no user chooses and which is never reused. Engines do not see it.
func (r *Reconciler) shareNode(d *api.MoEDeployment, pod *corev1.PodSpec) {
	const name = "node-memory"
	mount := corev1.VolumeMount{Name: name, MountPath: dirNode}
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{
		Path: path.Join(r.NodeFolder, string(d.UID)), Type: ptr.To(corev1.HostPathDirectoryOrCreate)}}})
	for i := range pod.Containers {
		if c := &pod.Containers[i]; c.Name == containerAgent {
			c.VolumeMounts = append(c.VolumeMounts, mount)
		}
	}
	// The kubelet creates the folder for root; agents are not root. This container needs root only to change the owner.
	user := strconv.Itoa(userID)
	giver := restricted()
	giver.RunAsNonRoot, giver.RunAsUser = ptr.To(false), ptr.To[int64](0)
	giver.Capabilities.Add = []corev1.Capability{"CHOWN"}
	pod.InitContainers = append(pod.InitContainers, corev1.Container{Name: name, Image: r.Images.agent(d), ImagePullPolicy: corev1.PullIfNotPresent,
		Resources: initTemplateOf(&d.Spec.Template.Spec, name).Resources.Requirements(),
		Command:   []string{"/bin/tangram-hook", "own", dirNode, user}, SecurityContext: giver,
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError, VolumeMounts: []corev1.VolumeMount{mount}})
}
