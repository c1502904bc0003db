package controller

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "tangram.dev/api/v1alpha2"
)

// byWorld is an index of the cache, so that a reconcile lists only objects of its world. A LayoutTransition names its
// world in its immutable spec, the other kinds in a label.
const byWorld = "world"

func index(ctx context.Context, indexer client.FieldIndexer) error {
	world := func(o client.Object) []string { return []string{o.GetLabels()[api.WorldLabel]} }
	for _, kind := range []client.Object{&corev1.Pod{}, &corev1.Secret{}, &corev1.ConfigMap{}} {
		if err := indexer.IndexField(ctx, kind, byWorld, world); err != nil {
			return err
		}
	}
	return indexer.IndexField(ctx, &api.LayoutTransition{}, byWorld, func(o client.Object) []string {
		return []string{o.(*api.LayoutTransition).Spec.MoEDeploymentName} //nolint:forcetypeassert // of that kind only
	})
}
