package controller

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tangram.dev/operator/internal/kubestore"

	api "tangram.dev/api/v1alpha2"
)

func meta(d *api.MoEDeployment, name, component string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: d.Namespace, Labels: labels(d, component)}
}

// shared creates the objects that all pods of the world need.
func (r *Reconciler) shared(ctx context.Context, d *api.MoEDeployment) error {
	account := &corev1.ServiceAccount{ObjectMeta: meta(d, d.Name, "account"), AutomountServiceAccountToken: ptr.To(false)}
	objects := []client.Object{account, enginesService(d), r.rankPolicy(d), r.gatewayPolicy(d)}
	if claim := gpuClaim(d); claim != nil {
		objects = append(objects, claim)
	}
	for _, object := range objects {
		if err := r.apply(ctx, d, object); err != nil {
			return err
		}
	}
	records := &corev1.ConfigMap{ObjectMeta: meta(d, recordsName(d), "records")}
	return r.createOnce(ctx, d, records, func() error { return nil })
}

func (r *Reconciler) records(d *api.MoEDeployment) *kubestore.Store {
	return &kubestore.Store{Reader: r.APIReader, Writer: r.Client, Key: client.ObjectKey{Namespace: d.Namespace, Name: recordsName(d)}}
}

// enginesService selects the engines of the active layout: gateways query any of them for the world.
func enginesService(d *api.MoEDeployment) *corev1.Service {
	chosen := selector(d, api.ComponentRank)
	chosen[api.MemberLabel] = "true"
	return &corev1.Service{ObjectMeta: meta(d, enginesName(d), api.ComponentRank), Spec: corev1.ServiceSpec{Selector: chosen,
		// Gateways query a member even if the kubelet has not seen it ready yet.
		PublishNotReadyAddresses: true,
		Ports:                    []corev1.ServicePort{{Name: "serve", Protocol: corev1.ProtocolTCP, Port: portServe, TargetPort: intstr.FromInt32(portServe)}}}}
}
