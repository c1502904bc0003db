package cluster

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ModelsClaim is the name of the claim of the checkpoints (e2e/demo/manifests).
const ModelsClaim = "models"

// volume returns a volume of a folder that every node sees, for one claim.
func volume(namespace, path string) *corev1.PersistentVolume {
	directory := corev1.HostPathDirectory
	return &corev1.PersistentVolume{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"},
		ObjectMeta: metav1.ObjectMeta{Name: "models-" + namespace},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef:                      &corev1.ObjectReference{Namespace: namespace, Name: ModelsClaim},
			PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &directory}},
		},
	}
}

// Namespace makes a namespace under restricted Pod Security, with its volume of checkpoints.
func (c *Cluster) Namespace(ctx context.Context, name string) error {
	if err := c.Kube.Apply(ctx, &corev1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}},
	}); err != nil {
		return err
	}
	return c.Models(ctx, name)
}

// DeleteNamespace deletes a namespace and its volume, without waiting: deletion takes half of the longest grace period
// of its pods. Its worlds are deleted first, so that they are not drained.
func (c *Cluster) DeleteNamespace(ctx context.Context, name string) error {
	if _, err := c.Kube.In(name).Run(ctx, nil, "delete", "moedeployments", "--all", "--wait=false"); err != nil {
		return err
	}
	if err := c.Kube.Delete(ctx, "namespace/"+name, false); err != nil {
		return err
	}
	return c.Kube.Delete(ctx, "persistentvolume/models-"+name, false)
}

// AwaitNamespaceGone waits until a deleted namespace and its volume are gone.
func (c *Cluster) AwaitNamespaceGone(ctx context.Context, name string) error {
	if err := c.Kube.Delete(ctx, "namespace/"+name, true); err != nil {
		return err
	}
	return c.Kube.Delete(ctx, "persistentvolume/models-"+name, true)
}
