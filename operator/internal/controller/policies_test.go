package controller

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "tangram.dev/api/v1alpha2"
)

// opened returns the open ports of a policy.
func opened(p *networkingv1.NetworkPolicy) []int32 {
	var out []int32
	for _, rule := range p.Spec.Ingress {
		for _, port := range rule.Ports {
			last := port.Port.IntVal
			if port.EndPort != nil {
				last = *port.EndPort
			}
			for n := port.Port.IntVal; n <= last; n++ {
				out = append(out, n)
			}
		}
	}
	return out
}

// declared returns the declared ports of containers.
func declared(containers []corev1.Container) []int32 {
	var out []int32
	for _, c := range containers {
		for _, p := range c.Ports {
			out = append(out, p.ContainerPort)
		}
	}
	return out
}

var listens = regexp.MustCompile(`(?m)^(?:--[a-z-]*listen=|[a-z_]*listen: )['"]?(?:\[::\])?:([0-9]+)['"]?$`)

// listening returns the listening ports in flags and files, one per line.
func listening(t *testing.T, text string) []int32 {
	t.Helper()
	var out []int32
	for _, match := range listens.FindAllStringSubmatch(text, -1) {
		n, err := strconv.ParseInt(match[1], 10, 32)
		require.NoError(t, err)
		out = append(out, int32(n))
	}
	return out
}

// The ports in policies, in containers and in the processes' configuration are the same, and only clients that need a
// port may connect to it.
func TestNetworkPoliciesMatchListeningPorts(t *testing.T) {
	b := newBed(t)
	d := b.deployment("w", 1)
	d.Spec.RanksPerPod = 3
	require.NoError(t, b.c.Create(t.Context(), d))
	d = b.ready("w")
	ranks, gateways := &networkingv1.NetworkPolicy{}, &networkingv1.NetworkPolicy{}
	for name, p := range map[string]*networkingv1.NetworkPolicy{"w-ranks": ranks, "w-gateway": gateways} {
		require.NoError(t, b.c.Get(t.Context(), client.ObjectKey{Namespace: b.namespace, Name: name}, p))
	}
	pod := b.pod("w-0")
	config, err := agentConfig(d)
	require.NoError(t, err)
	text := config.Data["agent.yaml"]
	for _, c := range pod.Spec.Containers {
		text += "\n" + strings.Join(c.Args, "\n")
	}
	require.Len(t, declared(pod.Spec.Containers), 3+2*3)
	require.ElementsMatch(t, declared(pod.Spec.Containers), listening(t, text), text)
	require.ElementsMatch(t, declared(pod.Spec.Containers), opened(ranks))
	deployment := must(b.r.gatewayDeployment(d, "10.0.0.1")).Spec.Template.Spec.Containers
	require.ElementsMatch(t, declared(deployment), listening(t, strings.Join(deployment[0].Args, "\n")))
	require.ElementsMatch(t, declared(deployment), opened(gateways))

	require.Empty(t, gateways.Spec.Ingress[0].From, "clients are anywhere")
	require.EqualValues(t, portGatewayTelemetry, gateways.Spec.Ingress[1].Ports[0].Port.IntVal)
	require.Len(t, gateways.Spec.Ingress[1].From, 1)
	require.Equal(t, map[string]string{corev1.LabelMetadataName: "tangram-system"}, gateways.Spec.Ingress[1].From[0].NamespaceSelector.MatchLabels)
	for _, p := range []*networkingv1.NetworkPolicy{ranks, gateways} {
		require.Equal(t, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}, p.Spec.PolicyTypes)
	}
	require.Equal(t, selector(d, api.ComponentRank), ranks.Spec.PodSelector.MatchLabels)
	for _, rule := range ranks.Spec.Ingress {
		switch port := rule.Ports[0].Port.IntVal; port {
		case portData, portMesh:
			require.Equal(t, selector(d, api.ComponentRank), rule.From[0].PodSelector.MatchLabels)
		case portServe:
			require.Equal(t, selector(d, api.ComponentGateway), rule.From[0].PodSelector.MatchLabels)
		case portAgent:
			// Agents query each other for pieces, votes and outcomes.
			require.Len(t, rule.From, 2)
			require.Nil(t, rule.From[0].NamespaceSelector)
			require.Equal(t, selector(d, api.ComponentRank), rule.From[0].PodSelector.MatchLabels)
			require.Equal(t, map[string]string{corev1.LabelMetadataName: "tangram-system"}, rule.From[1].NamespaceSelector.MatchLabels)
		default:
			require.EqualValues(t, portMetrics, port)
			require.Empty(t, rule.From)
		}
	}
}
