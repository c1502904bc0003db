package api_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"tangram.dev/api/v1alpha2"
)

// `kubectl scale` and autoscalers read and write /scale without knowing MoEDeployments.
func TestScaleSubresource(t *testing.T) {
	c := newClient(t)
	namespace := newNamespace(t, c)
	world := typed(t, namespace)
	world.Spec.Replicas = 1
	require.NoError(t, c.Create(t.Context(), world))
	world.Status.Replicas = 1
	world.Status.Selector = "serving.tangram.dev/component=rank,serving.tangram.dev/world=demo"
	require.NoError(t, c.Status().Update(t.Context(), world))

	scale := &autoscalingv1.Scale{}
	require.NoError(t, c.SubResource("scale").Get(t.Context(), world, scale))
	require.Equal(t, int32(1), scale.Spec.Replicas)
	require.Equal(t, int32(1), scale.Status.Replicas)
	require.Equal(t, world.Status.Selector, scale.Status.Selector)

	kubectl(t, "scale", "moedeployment/demo", "-n", namespace, "--replicas=3")
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(world), world))
	require.Equal(t, int32(3), world.Spec.Replicas)

	_, err := server.Kubectl(t.Context(), "", "scale", "moed/demo", "-n", namespace, "--replicas=0")
	require.ErrorContains(t, err, "To stop serving, delete the MoEDeployment")
	_, err = server.Kubectl(t.Context(), "", "scale", "moed/demo", "-n", namespace, "--replicas=9000")
	require.ErrorContains(t, err, "should be less than or equal to 8192")
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(world), world))
	require.Equal(t, int32(3), world.Spec.Replicas)
}

func TestDefaults(t *testing.T) {
	c := newClient(t)
	object := smallestIn(t, newNamespace(t, c)) // untyped, because it must send no empty structs
	require.NoError(t, c.Create(t.Context(), object))
	world := &v1alpha2.MoEDeployment{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(object), world))

	require.Zero(t, world.Spec.Replicas, "the operator writes it: a default would shrink a world whose manifest leaves it out")
	require.Equal(t, int32(1), world.Spec.RanksPerPod)
	require.Equal(t, v1alpha2.ModeExpert, world.SpecMode())
	require.Equal(t, v1alpha2.RebalanceOff, world.Spec.Experts.Rebalance.Mode)
	require.Equal(t, v1alpha2.AcceleratorNone, world.Spec.Accelerator.Type)
	require.Equal(t, v1alpha2.Network{Encryption: v1alpha2.EncryptionRequired, NodeMemorySharing: v1alpha2.NodeMemorySharingDisabled}, world.Spec.Network)
	require.Equal(t, v1alpha2.Page4Ki, world.Spec.Memory.PageSize)
	require.Zero(t, world.Spec.Tuning.GranuleRows, "the agents choose it for the checkpoint")
	require.Equal(t, int32(2), world.Spec.Gateway.Replicas)
	require.Equal(t, "ClusterIP", string(world.Spec.Gateway.Service.Type))
	require.Equal(t, v1alpha2.Transition{Strategy: v1alpha2.StrategySmooth, TimeoutSeconds: 60, BandwidthPercent: 100}, world.Spec.Transition)
	require.Equal(t, v1alpha2.Tuning{SlabFormat: v1alpha2.GranuleMajor, SpareBanks: 2, MaxStepStretchPercent: 100, HistoryLimit: 10}, world.Spec.Tuning)
}

func TestKubectlGetFitsOneScreen(t *testing.T) {
	c := newClient(t)
	namespace := newNamespace(t, c)
	world := typed(t, namespace)
	world.Spec.Replicas = 6
	require.NoError(t, c.Create(t.Context(), world))
	world.Status = v1alpha2.MoEDeploymentStatus{
		Model: "demo", Mode: v1alpha2.ModeTensor, Ranks: 4, Epoch: 17, Replicas: 5, DesiredReplicas: 6, ReadyReplicas: 4, Ready: "4/6",
		State: v1alpha2.ReasonTransition, Endpoint: "http://demo-gateway",
	}
	meta.SetStatusCondition(&world.Status.Conditions, metav1.Condition{
		Type: v1alpha2.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha2.ReasonTransition, Message: "4 of 6 ranks",
	})
	require.NoError(t, c.Status().Update(t.Context(), world))

	lines := table(kubectl(t, "get", "moed", "-n", namespace))
	require.Equal(t, []string{"NAME", "MODEL", "MODE", "READY", "STATUS", "AGE"}, lines[0])
	require.Equal(t, []string{"demo", "demo", "TensorParallel", "4/6", "Transition"}, lines[1][:5])
	wide := table(kubectl(t, "get", "moed", "-n", namespace, "-o", "wide"))
	require.Equal(t, []string{"EPOCH", "ENDPOINT", "MESSAGE"}, wide[0][6:])
	require.Equal(t, []string{"17", "http://demo-gateway", "4 of 6 ranks"}, wide[1][6:])

	kubectl(t, "wait", "moed/demo", "-n", namespace, "--for=condition=Ready=False", "--timeout=5s")
	kubectl(t, "wait", "moed/demo", "-n", namespace, "--for=jsonpath={.status.ranks}=4", "--timeout=5s")
}

func TestKubectlGetShowsTransitions(t *testing.T) {
	c := newClient(t)
	namespace := newNamespace(t, c)
	transition := &v1alpha2.LayoutTransition{
		ObjectMeta: metav1.ObjectMeta{Name: "demo-20261128-174501-123", Namespace: namespace},
		Spec: v1alpha2.LayoutTransitionSpec{
			MoEDeploymentName: "demo", Kind: v1alpha2.KindScale, Summary: "4 ranks ExpertParallel -> 6 ranks ExpertParallel", Flips: 3,
			To: v1alpha2.TransitionEnd{Mode: v1alpha2.ModeExpert, Ranks: 6}, ExpertBytes: 4096, ExpertBytesLowerBound: 2048,
		},
	}
	require.NoError(t, c.Create(t.Context(), transition))
	transition.Status = v1alpha2.LayoutTransitionStatus{Phase: v1alpha2.PhaseStaging, Epoch: 4, Progress: "flip 2/3 layout: 1 of 4 MiB"}
	meta.SetStatusCondition(&transition.Status.Conditions, metav1.Condition{Type: v1alpha2.TransitionComplete, Status: metav1.ConditionFalse, Reason: v1alpha2.ReasonInProgress})
	require.NoError(t, c.Status().Update(t.Context(), transition))

	lines := table(kubectl(t, "get", "moet", "-n", namespace))
	require.Equal(t, []string{"NAME", "DEPLOYMENT", "KIND", "CHANGE", "PHASE", "PROGRESS", "AGE"}, lines[0])
	require.Equal(t, []string{"demo-20261128-174501-123", "demo", "Scale", "4 ranks ExpertParallel -> 6 ranks ExpertParallel", "Staging",
		"flip 2/3 layout: 1 of 4 MiB"}, lines[1][:6])
	kubectl(t, "wait", "moet/demo-20261128-174501-123", "-n", namespace, "--for=condition=Complete=False", "--timeout=5s")
}

// `kubectl explain` explains every field that a user may set.
func TestKubectlExplain(t *testing.T) {
	out := kubectl(t, "explain", "moedeployment", "--recursive")
	require.Contains(t, out, "GROUP:      serving.tangram.dev")
	for _, field := range []string{"spec", "spec.replicas", "spec.parallelism.mode", "spec.model.source", "spec.engine.args", "spec.template.spec.containers.resources",
		"spec.gateway.service.type", "spec.transition.strategy", "spec.memory.weights", "status.members", "status.recentTransitions"} {
		description := regexp.MustCompile(`(?s)DESCRIPTION:\s+(.*)`).FindStringSubmatch(kubectl(t, "explain", "moedeployment."+field))
		require.Len(t, description, 2, field)
		require.NotContains(t, description[1][:min(len(description[1]), 12)], "<empty>", field)
	}
	require.Contains(t, kubectl(t, "explain", "layouttransition.spec.expertBytesLowerBound"), "int")
}

// typed returns the smallest valid object.
func typed(t *testing.T, namespace string) *v1alpha2.MoEDeployment {
	t.Helper()
	world := &v1alpha2.MoEDeployment{}
	decode(t, smallest, world)
	world.Namespace = namespace
	return world
}

// table splits kubectl's output: columns are two or more spaces apart.
func table(out string) [][]string {
	columns := regexp.MustCompile(` {2,}`)
	var rows [][]string
	for line := range strings.Lines(out) {
		rows = append(rows, columns.Split(strings.TrimSpace(line), -1))
	}
	return rows
}
