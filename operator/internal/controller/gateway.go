package controller

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "tangram.dev/api/v1alpha2"
)

// At SIGTERM, a gateway reports unready but still accepts requests for lameDuck seconds, until kube-proxies and load
// balancers send it no more. It does so itself, so there is no preStop hook. Requests then have the rest of the pod's
// grace period, except endMargin, in which the gateway aborts them.
const (
	gatewayGrace = 600
	lameDuck     = 10
	endMargin    = 5
)

// gatewayService is the Service for clients and load balancers.
func gatewayService(d *api.MoEDeployment) *corev1.Service {
	s := d.Spec.Gateway.Service
	out := &corev1.Service{ObjectMeta: meta(d, gatewayName(d), api.ComponentGateway), Spec: corev1.ServiceSpec{
		Type: s.Type, LoadBalancerClass: s.LoadBalancerClass, Selector: selector(d, api.ComponentGateway),
		Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromString("http")}}}}
	out.Annotations = maps.Clone(s.Annotations)
	return out
}

// gateway applies the world's gateway: a Deployment, a Service and a disruption budget. It returns the number of
// replicas that accept requests, and notes problems in s. It needs the address of the engines' Service, where gateways
// query the world without DNS.
func (r *Reconciler) gateway(ctx context.Context, d *api.MoEDeployment, a *authority, s *scene) (int32, error) {
	if err := r.gatewayCertificate(ctx, d, a); err != nil {
		return 0, err
	}
	if err := r.apply(ctx, d, gatewayService(d)); err != nil {
		return 0, err
	}
	if err := r.apply(ctx, d, gatewayBudget(d)); err != nil {
		return 0, err
	}
	engines := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: enginesName(d), Namespace: d.Namespace}}
	if there, err := r.find(ctx, d, engines); err != nil || !there || engines.Spec.ClusterIP == "" {
		return 0, err // the Service's own event triggers the next reconcile
	}
	wanted, err := r.gatewayDeployment(d, engines.Spec.ClusterIP)
	if err != nil {
		return 0, err
	}
	made := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: gatewayName(d), Namespace: d.Namespace}}
	if there, err := r.find(ctx, d, made); err != nil {
		return 0, err
	} else if there && scaledByOthers(made) {
		autoscalers, err := r.autoscalersOf(ctx, d.Namespace, appsv1.GroupName, "Deployment", made.Name)
		if err != nil {
			return 0, err
		}
		if len(autoscalers) > 0 {
			wanted.Spec.Replicas = nil // the autoscaler's number stays
		}
	}
	if err := r.apply(ctx, d, wanted); err != nil {
		why := refused(err)
		if why == nil || why.reason != api.ReasonObjectRejected {
			return 0, err
		}
		// Only reported, and blocks nothing else: existing gateways continue to serve.
		s.gatewayProblems = append(s.gatewayProblems, problem{gatewayName(d), why.reason, clip(why.message, longestWords)})
	}
	if _, err := r.find(ctx, d, made); err != nil {
		return 0, err
	}
	return made.Status.AvailableReplicas, r.gatewayProblems(ctx, d, made, s)
}

// scaledByOthers says whether a client set the number of gateways with the scale subresource, and owns the field. Only
// then may an apply omit it: without an owner the API server sets it to 1.
func scaledByOthers(made *appsv1.Deployment) bool {
	return slices.ContainsFunc(made.ManagedFields, func(f metav1.ManagedFieldsEntry) bool {
		return f.Subresource == "scale" && f.FieldsV1 != nil && strings.Contains(f.FieldsV1.GetRawString(), `"f:replicas"`)
	})
}

// gatewayProblems collects why pods of gateways do not start or could not be created.
func (r *Reconciler) gatewayProblems(ctx context.Context, d *api.MoEDeployment, made *appsv1.Deployment, s *scene) error {
	for _, c := range made.Status.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			s.gatewayProblems = append(s.gatewayProblems, problem{made.Name, api.ReasonObjectRejected, clip(c.Message, longestWords)})
		}
	}
	var pods corev1.PodList
	if err := r.List(ctx, &pods, client.InNamespace(d.Namespace), client.MatchingFields{byWorld: d.Name}, client.MatchingLabels(selector(d, api.ComponentGateway))); err != nil {
		return err
	}
	for i := range pods.Items {
		if pods.Items[i].DeletionTimestamp != nil {
			continue
		}
		found, again, err := r.problemOf(ctx, &pods.Items[i])
		if err != nil {
			return err
		}
		if found != nil {
			s.gatewayProblems = append(s.gatewayProblems, *found)
		}
		s.again = sooner(s.again, again)
	}
	return nil
}

func (r *Reconciler) gatewayDeployment(d *api.MoEDeployment, engines string) (*appsv1.Deployment, error) {
	model := d.Spec.Model.Name
	if model == "" {
		model = d.Name
	}
	probe := func(path string, period int32) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("metrics")}}, PeriodSeconds: period}
	}
	spread := func(key string) corev1.TopologySpreadConstraint {
		return corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: corev1.ScheduleAnyway,
			LabelSelector: &metav1.LabelSelector{MatchLabels: selector(d, api.ComponentGateway)}, MatchLabelKeys: []string{appsv1.DefaultDeploymentUniqueLabelKey}}
	}
	grace := ptr.Deref(d.Spec.Gateway.Template.Spec.TerminationGracePeriodSeconds, gatewayGrace)
	container := corev1.Container{
		Name: "gateway", Image: r.Images.Gateway, ImagePullPolicy: corev1.PullIfNotPresent,
		Command: []string{"/bin/tangram-gateway"},
		Args: []string{"--world=" + worldName(d), "--model=" + model, fmt.Sprintf("--listen=:%d", portGateway),
			fmt.Sprintf("--metrics-listen=:%d", portGatewayMetrics), fmt.Sprintf("--telemetry-listen=:%d", portGatewayTelemetry), fmt.Sprintf("--lame-duck=%ds", lameDuck), fmt.Sprintf("--grace=%ds", grace-lameDuck-endMargin), "--name=$(POD_UID)",
			"--discover=" + net.JoinHostPort(engines, strconv.Itoa(portServe)),
			"--tls-ca=" + dirTLS + "/" + keyCA, "--tls-cert=" + dirTLS + "/" + keyCert, "--tls-key=" + dirTLS + "/" + keyKey},
		Env: []corev1.EnvVar{fieldEnv("POD_UID", "metadata.uid")},
		Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: portGateway, Protocol: corev1.ProtocolTCP},
			{Name: "metrics", ContainerPort: portGatewayMetrics, Protocol: corev1.ProtocolTCP},
			{Name: "telemetry", ContainerPort: portGatewayTelemetry, Protocol: corev1.ProtocolTCP}},
		ReadinessProbe:  probe("/readyz", 1),
		LivenessProbe:   probe("/livez", 10),
		Resources:       withProcessor(resourcesOf(d.Spec.Gateway.Template.Spec.Containers, "gateway"), gatewayProcessor),
		SecurityContext: restricted(), TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		VolumeMounts: []corev1.VolumeMount{{Name: "tls", MountPath: dirTLS, ReadOnly: true}},
	}
	deployment := &appsv1.Deployment{ObjectMeta: meta(d, gatewayName(d), api.ComponentGateway), Spec: appsv1.DeploymentSpec{
		// No gateway ends before its replacement is ready.
		Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: ptr.To(intstr.FromInt32(0)), MaxSurge: ptr.To(intstr.FromInt32(1))}},
		Replicas: ptr.To(d.Spec.Gateway.Replicas), Selector: &metav1.LabelSelector{MatchLabels: selector(d, api.ComponentGateway)},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels(d, api.ComponentGateway)}, Spec: corev1.PodSpec{
			ServiceAccountName: d.Name, AutomountServiceAccountToken: ptr.To(false), EnableServiceLinks: ptr.To(false),
			TerminationGracePeriodSeconds: ptr.To(grace),
			TopologySpreadConstraints:     []corev1.TopologySpreadConstraint{spread(corev1.LabelHostname), spread(corev1.LabelTopologyZone)},
			SecurityContext:               restrictedPod(), Containers: []corev1.Container{container},
			Volumes: []corev1.Volume{{Name: "tls", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
				SecretName: gatewayTLSName(d), DefaultMode: ptr.To[int32](0o440)}}}},
		}},
	}}
	pod := &deployment.Spec.Template
	r.withText(d, model, &pod.Spec)
	return deployment, fromTemplate(&d.Spec.Gateway.Template, &pod.ObjectMeta, &pod.Spec)
}

// gatewayBudget lets evictions take one gateway at a time. A single gateway can be evicted too: the user chose to have
// only one, and a budget that blocks a drain forever helps no user.
func gatewayBudget(d *api.MoEDeployment) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{ObjectMeta: meta(d, gatewayName(d), api.ComponentGateway), Spec: policyv1.PodDisruptionBudgetSpec{
		MaxUnavailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: selector(d, api.ComponentGateway)},
		UnhealthyPodEvictionPolicy: ptr.To(policyv1.AlwaysAllow)}}
}

// endpoint is the gateway's address inside the cluster.
func endpoint(d *api.MoEDeployment) string {
	return fmt.Sprintf("http://%s.%s.svc/v1", gatewayName(d), d.Namespace)
}
