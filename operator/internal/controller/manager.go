package controller

import (
	"errors"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	k8slabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"

	api "tangram.dev/api/v1alpha2"
)

// ManagerOptions returns the scheme and a cache. Of kinds that others use too, the cache holds only objects with our
// label. namespaces are the watched ones; none: all.
func ManagerOptions(namespaces ...string) (ctrl.Options, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), api.AddToScheme(scheme)); err != nil {
		return ctrl.Options{}, err
	}
	ours, err := k8slabels.NewRequirement(api.WorldLabel, selection.Exists, nil)
	if err != nil {
		return ctrl.Options{}, err
	}
	only := cache.ByObject{Label: k8slabels.NewSelector().Add(*ours)}
	o := cache.Options{ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: only, &corev1.Secret{}: only, &corev1.ConfigMap{}: only,
		&corev1.Service{}: only, &corev1.ServiceAccount{}: only, &appsv1.Deployment{}: only,
		&policyv1.PodDisruptionBudget{}: only, &networkingv1.NetworkPolicy{}: only, &resourcev1.ResourceClaimTemplate{}: only}}
	for _, namespace := range namespaces {
		if o.DefaultNamespaces == nil {
			o.DefaultNamespaces = map[string]cache.Config{}
		}
		o.DefaultNamespaces[namespace] = cache.Config{}
	}
	// The priority queue of controller-runtime v0.24 hands out an item under the lock that Done needs, and no worker
	// takes it during shutdown. An operator that ends while its workers are busy would deadlock.
	return ctrl.Options{Scheme: scheme, Cache: o, Controller: config.Controller{UsePriorityQueue: new(false)}}, nil
}
