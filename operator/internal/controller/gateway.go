package controller

import (
	"context"
	"fmt"
	"net"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"tangram.dev/operator/internal/pki"

	api "tangram.dev/api/v1alpha1"
)

// gateway of the world: a Deployment and a Service; it gives the number of replicas that accept
// requests. The engines' Service must be there: its address is what gateways ask for the world,
// so that they need no DNS.
func (r *Reconciler) gateway(ctx context.Context, d *api.MoEDeployment, a *pki.Authority) (int32, error) {
	if err := r.gatewayCertificate(ctx, d, a); err != nil {
		return 0, err
	}
	service := &corev1.Service{ObjectMeta: meta(d, gatewayName(d), api.ComponentGateway), Spec: corev1.ServiceSpec{
		Type: d.Spec.Gateway.ServiceType, Selector: selector(d, api.ComponentGateway),
		Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromString("http")}}}}
	if err := r.apply(ctx, d, service); err != nil {
		return 0, err
	}
	engines := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: enginesName(d), Namespace: d.Namespace}}
	if there, err := r.find(ctx, d, engines); err != nil || !there || engines.Spec.ClusterIP == "" {
		return 0, err // the Service's own event brings us here again
	}
	if err := r.apply(ctx, d, r.gatewayDeployment(d, engines.Spec.ClusterIP)); err != nil {
		return 0, err
	}
	made := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: gatewayName(d), Namespace: d.Namespace}}
	_, err := r.find(ctx, d, made)
	return made.Status.AvailableReplicas, err
}

func (r *Reconciler) gatewayDeployment(d *api.MoEDeployment, engines string) *appsv1.Deployment {
	model := d.Spec.Model.Name
	if model == "" {
		model = d.Name
	}
	probe := func(path string, period int32) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("http")}}, PeriodSeconds: period}
	}
	container := corev1.Container{
		Name: "gateway", Image: r.Images.Gateway, ImagePullPolicy: d.Spec.Engine.ImagePullPolicy,
		Command: []string{"/bin/tangram-gateway"},
		Args: []string{"--world=" + worldName(d), "--model=" + model, fmt.Sprintf("--listen=:%d", portGateway), "--name=$(POD_UID)",
			"--discover=" + net.JoinHostPort(engines, strconv.Itoa(portServe)),
			"--tls-ca=" + dirTLS + "/" + keyCA, "--tls-cert=" + dirTLS + "/" + keyCert, "--tls-key=" + dirTLS + "/" + keyKey},
		Env:             []corev1.EnvVar{fieldEnv("POD_UID", "metadata.uid")},
		Ports:           []corev1.ContainerPort{{Name: "http", ContainerPort: portGateway, Protocol: corev1.ProtocolTCP}},
		ReadinessProbe:  probe("/healthz", 1),
		LivenessProbe:   probe("/livez", 10),
		Resources:       d.Spec.Gateway.Resources,
		SecurityContext: restricted(), TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		VolumeMounts: []corev1.VolumeMount{{Name: "tls", MountPath: dirTLS, ReadOnly: true}},
	}
	return &appsv1.Deployment{ObjectMeta: meta(d, gatewayName(d), api.ComponentGateway), Spec: appsv1.DeploymentSpec{
		Replicas: ptr.To(d.Spec.Gateway.Replicas), Selector: &metav1.LabelSelector{MatchLabels: selector(d, api.ComponentGateway)},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels(d, api.ComponentGateway)}, Spec: corev1.PodSpec{
			ServiceAccountName: d.Name, AutomountServiceAccountToken: ptr.To(false), EnableServiceLinks: ptr.To(false),
			SecurityContext: restrictedPod(), Containers: []corev1.Container{container},
			Volumes: []corev1.Volume{{Name: "tls", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
				SecretName: gatewayTLSName(d), DefaultMode: ptr.To[int32](0o440)}}}},
		}},
	}}
}

// endpoint of the gateway inside the cluster.
func endpoint(d *api.MoEDeployment) string {
	return fmt.Sprintf("http://%s.%s.svc/v1", gatewayName(d), d.Namespace)
}
