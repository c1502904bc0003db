package controller

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	api "tangram.dev/api/v1alpha2"
)

// rankPolicy says who may connect to pods of ranks, if the cluster enforces policies. Agent, data and mesh: ranks of
// the world (all ports if NCCL is possible). Serve: its gateways. Agent: also the operator. Metrics: any client.
func (r *Reconciler) rankPolicy(d *api.MoEDeployment) *networkingv1.NetworkPolicy {
	last := d.Spec.RanksPerPod - 1
	rules := []networkingv1.NetworkPolicyIngressRule{
		{Ports: ports(portData, 0), From: component(d, api.ComponentRank)},
		{Ports: ports(portMesh, last), From: component(d, api.ComponentRank)},
		{Ports: ports(portServe, last), From: component(d, api.ComponentGateway)},
		{Ports: ports(portAgent, 0), From: r.callers(d)},
		{Ports: ports(portMetrics, 0)},
	}
	if d.OnGPU() && d.IsPlaintext() {
		// A communication library between the agents (NCCL) chooses its ports itself.
		rules = append(rules, networkingv1.NetworkPolicyIngressRule{From: component(d, api.ComponentRank)})
	}
	return policy(d, d.Name+"-ranks", api.ComponentRank, rules)
}

// gatewayPolicy allows clients and readers of metrics from anywhere, and the operator for telemetry.
func (r *Reconciler) gatewayPolicy(d *api.MoEDeployment) *networkingv1.NetworkPolicy {
	return policy(d, gatewayName(d), api.ComponentGateway, []networkingv1.NetworkPolicyIngressRule{
		{Ports: append(ports(portGateway, 0), ports(portGatewayMetrics, 0)...)},
		{Ports: ports(portGatewayTelemetry, 0), From: r.operator()}})
}

func policy(d *api.MoEDeployment, name, of string, rules []networkingv1.NetworkPolicyIngressRule) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{ObjectMeta: meta(d, name, of), Spec: networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: selector(d, of)}, Ingress: rules,
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}}}
}

// ports returns a range that starts at first and has `more` further ports.
func ports(first, more int32) []networkingv1.NetworkPolicyPort {
	p := networkingv1.NetworkPolicyPort{Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(intstr.FromInt32(first))}
	if more > 0 {
		p.EndPort = ptr.To(first + more)
	}
	return []networkingv1.NetworkPolicyPort{p}
}

func component(d *api.MoEDeployment, name string) []networkingv1.NetworkPolicyPeer {
	return []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: selector(d, name)}}}
}

// callers of agents are the operator's pods and the other agents of the world; nil: any client, because the operator's
// namespace is unknown.
func (r *Reconciler) callers(d *api.MoEDeployment) []networkingv1.NetworkPolicyPeer {
	if r.OwnNamespace == "" {
		return nil
	}
	return append(component(d, api.ComponentRank), r.operator()...)
}

// operator selects the operator's pods; nil: any client, because their namespace is unknown.
func (r *Reconciler) operator() []networkingv1.NetworkPolicyPeer {
	if r.OwnNamespace == "" {
		return nil
	}
	return []networkingv1.NetworkPolicyPeer{{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: r.OwnNamespace}},
		PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/name": "tangram-operator"}}}}
}
