package controller

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	k8slabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tangram.dev/operator/internal/pki"

	api "tangram.dev/api/v1alpha2"
)

// kstatus computes the status of a deployment as tools with kstatus do.
func kstatus(t *testing.T, d *api.MoEDeployment) *status.Result {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(d)
	require.NoError(t, err)
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(api.GroupVersion.WithKind("MoEDeployment"))
	result, err := status.Compute(u)
	require.NoError(t, err)
	return result
}

func TestCreate(t *testing.T) {
	b := newBed(t)
	b.let(fate{hold: true}, "w-1")
	require.NoError(t, b.c.Create(t.Context(), b.deployment("w", 3)))
	d := b.until("w", "waiting for the pod that does not start", func(d *api.MoEDeployment) bool {
		return has(d, api.ConditionProgressing, metav1.ConditionTrue, api.ReasonWaitingForPods) && strings.Contains(message(d, api.ConditionProgressing), "1 of 3")
	})
	require.True(t, has(d, api.ConditionAvailable, metav1.ConditionFalse, api.ReasonNoLayout))
	require.True(t, has(d, api.ConditionReady, metav1.ConditionFalse, api.ReasonNoLayout))
	require.True(t, has(d, api.ConditionDegraded, metav1.ConditionFalse, api.ReasonReconciled))
	require.Equal(t, status.InProgressStatus, kstatus(t, d).Status)
	require.Empty(t, b.history(), "nothing begins before all are there")

	b.let(fate{})
	d = b.ready("w")
	require.Equal(t, status.CurrentStatus, kstatus(t, d).Status)
	s := d.Status
	require.EqualValues(t, []int64{1, 3, 3, 3}, []int64{s.Epoch, int64(s.Ranks), int64(s.Replicas), int64(s.ReadyReplicas)})
	require.Equal(t, api.ModeExpert, s.Mode)
	require.Equal(t, []string{"w", "3/3"}, []string{s.Model, s.Ready})
	require.Equal(t, api.ReasonServing, s.State)
	require.Len(t, s.LayoutHash, 64)
	require.Nil(t, s.Transition)
	require.Equal(t, "http://w-gateway."+b.namespace+".svc/v1", s.Endpoint)
	for rank, m := range s.Members {
		p := b.pod(m.Pod)
		require.EqualValues(t, rank, m.Rank)
		require.Equal(t, string(p.UID)+"/0/1", m.ID)
		require.Equal(t, p.Spec.NodeName, m.Node)
		require.Equal(t, "true", p.Labels[api.MemberLabel])
	}
	for _, kind := range []string{api.ConditionAvailable, api.ConditionProgressing, api.ConditionDegraded, api.ConditionReady} {
		c := apimeta.FindStatusCondition(s.Conditions, kind)
		require.NotNil(t, c, kind)
		require.NotEmpty(t, c.Message, kind)
	}

	history := b.history()
	require.Len(t, history, 1)
	first := history[0]
	require.True(t, metav1.IsControlledBy(&first, d))
	require.Equal(t, api.PhaseSucceeded, first.Status.Phase)
	require.Equal(t, d.Generation, first.Spec.MoEDeploymentGeneration)
	require.EqualValues(t, []int64{0, 1, 3}, []int64{first.Spec.From.Epoch, first.Status.Epoch, int64(first.Spec.To.Ranks)})
	require.Len(t, first.Spec.Members, 3)
	require.Len(t, first.Status.Flips, int(first.Spec.Flips))
	require.Equal(t, "first", first.Status.Flips[0].Kind)
	require.Positive(t, first.Status.Bytes.TCP)
	require.False(t, first.Status.CompletionTime.Before(first.Status.StartTime))
	require.Len(t, s.RecentTransitions, 1)
	require.Equal(t, first.Name, s.RecentTransitions[0].Name)
	require.Equal(t, api.PhaseSucceeded, s.RecentTransitions[0].Phase)
	b.told(api.EventPodCreated, "w-2")
	b.told(api.EventTransitionStarted, "3 ranks ExpertParallel")
	b.told(api.EventTransitionSucceeded, "epoch 1")
	require.InDelta(t, 1, testutil.ToFloat64(b.metrics.epoch.WithLabelValues(b.namespace, "w")), 0)
	require.InDelta(t, 3, testutil.ToFloat64(b.metrics.ranks.WithLabelValues(b.namespace, "w")), 0)
	require.InDelta(t, 1, testutil.ToFloat64(b.metrics.transitions.WithLabelValues(b.namespace, "w", "Succeeded")), 0)
}

// The world's objects have an owner reference: the API server removes them with the MoEDeployment.
func TestWorldObjects(t *testing.T) {
	b := newBed(t)
	d := b.serve("w", 2)
	for name, o := range map[string]client.Object{"w": &corev1.ServiceAccount{}, b.configOf("w-0").Name: &corev1.ConfigMap{}, "w-world": &corev1.ConfigMap{},
		"w-ca": &corev1.Secret{}, "w-0-tls": &corev1.Secret{}, "w-gateway-tls": &corev1.Secret{}, "w-engines": &corev1.Service{}, "w-0": &corev1.Pod{}} {
		require.NoError(t, b.c.Get(t.Context(), client.ObjectKey{Namespace: b.namespace, Name: name}, o), name)
		require.True(t, metav1.IsControlledBy(o, d), name)
	}
	engines, gateway := &corev1.Service{}, &appsv1.Deployment{}
	require.NoError(t, b.c.Get(t.Context(), client.ObjectKey{Namespace: b.namespace, Name: "w-engines"}, engines))
	require.Equal(t, "true", engines.Spec.Selector[api.MemberLabel])
	require.NoError(t, b.c.Get(t.Context(), client.ObjectKey{Namespace: b.namespace, Name: "w-gateway"}, gateway))
	require.Contains(t, gateway.Spec.Template.Spec.Containers[0].Args, "--discover="+engines.Spec.ClusterIP+":7300")
	require.Contains(t, gateway.Spec.Template.Spec.Containers[0].Args, "--world="+b.namespace+".w")

	// The certificates in the Secrets are from the world's authority, each for its role.
	ca, mine := &corev1.Secret{}, &corev1.Secret{}
	require.NoError(t, b.c.Get(t.Context(), client.ObjectKey{Namespace: b.namespace, Name: "w-ca"}, ca))
	require.NoError(t, b.c.Get(t.Context(), client.ObjectKey{Namespace: b.namespace, Name: "w-0-tls"}, mine))
	_, err := pki.ParseAuthority(b.namespace+".w", pki.Validity{}, ca.Data[keyCA], ca.Data[keyCAKey], nil)
	require.NoError(t, err)
	require.NotContains(t, mine.Data, keyCAKey, "a pod never sees the authority's key")
	for _, role := range []string{"agent", "engine"} {
		require.NoError(t, new(pki.Identity).Set(mine.Data[keyCA], mine.Data[role+".crt"], mine.Data[role+".key"]), role)
	}

	// Drift is repaired; an unchanged object is not written again.
	before := gateway.ResourceVersion
	base := gateway.DeepCopy()
	gateway.Spec.Template.Spec.Containers[0].Image = "somebody:else"
	require.NoError(t, b.c.Patch(t.Context(), gateway, client.MergeFrom(base)))
	require.Eventually(t, func() bool {
		require.NoError(t, b.c.Get(t.Context(), client.ObjectKeyFromObject(gateway), gateway))
		return gateway.Spec.Template.Spec.Containers[0].Image == "gateway:test" && gateway.ResourceVersion != before
	}, wait, tick)
}

// A rollout, a drain or the loss of a node leaves a gateway that answers, and time for streams to end.
func TestGatewaysAreReplacedOneByOne(t *testing.T) {
	b := newBed(t)
	d := b.deployment("w", 1)
	d.Spec.Gateway.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](100)
	require.NoError(t, b.c.Create(t.Context(), d))
	d = b.ready("w")
	gateway, budget := &appsv1.Deployment{}, &policyv1.PodDisruptionBudget{}
	require.NoError(t, b.c.Get(t.Context(), client.ObjectKey{Namespace: b.namespace, Name: "w-gateway"}, gateway))
	require.EqualValues(t, 2, *gateway.Spec.Replicas)
	require.Equal(t, appsv1.RollingUpdateDeploymentStrategyType, gateway.Spec.Strategy.Type)
	require.Zero(t, gateway.Spec.Strategy.RollingUpdate.MaxUnavailable.IntValue())
	require.Equal(t, 1, gateway.Spec.Strategy.RollingUpdate.MaxSurge.IntValue())
	pod := gateway.Spec.Template.Spec
	require.EqualValues(t, 100, *pod.TerminationGracePeriodSeconds)
	args := pod.Containers[0].Args
	for _, want := range []string{"--lame-duck=10s", "--grace=85s", "--listen=:8080", "--metrics-listen=:8081", "--telemetry-listen=:8082"} {
		require.Contains(t, args, want)
	}
	require.Equal(t, []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}, {Name: "metrics", ContainerPort: 8081, Protocol: corev1.ProtocolTCP},
		{Name: "telemetry", ContainerPort: 8082, Protocol: corev1.ProtocolTCP}}, pod.Containers[0].Ports)
	require.Equal(t, "metrics", pod.Containers[0].ReadinessProbe.HTTPGet.Port.StrVal)
	require.Equal(t, "/readyz", pod.Containers[0].ReadinessProbe.HTTPGet.Path)
	require.Equal(t, "metrics", pod.Containers[0].LivenessProbe.HTTPGet.Port.StrVal)
	var keys []string
	for _, c := range pod.TopologySpreadConstraints {
		keys = append(keys, c.TopologyKey)
		require.Equal(t, corev1.ScheduleAnyway, c.WhenUnsatisfiable)
	}
	require.Equal(t, []string{corev1.LabelHostname, corev1.LabelTopologyZone}, keys)
	require.NoError(t, b.c.Get(t.Context(), client.ObjectKey{Namespace: b.namespace, Name: "w-gateway"}, budget))
	require.True(t, metav1.IsControlledBy(budget, d))
	require.Equal(t, 1, budget.Spec.MaxUnavailable.IntValue())
	require.Equal(t, gateway.Spec.Selector.MatchLabels, budget.Spec.Selector.MatchLabels)
}

// With an HPA, the operator keeps the HPA's number of gateways until the HPA is deleted. It reverts other writes.
func TestGatewayReplicas_WhenHPAExists(t *testing.T) {
	b := newBed(t)
	require.NoError(t, b.c.Create(t.Context(), b.deployment("w", 1)))
	b.ready("w")
	gateway := func() *appsv1.Deployment {
		made := &appsv1.Deployment{}
		require.NoError(t, b.c.Get(t.Context(), client.ObjectKey{Namespace: b.namespace, Name: "w-gateway"}, made))
		return made
	}
	scale := func(n int32) {
		t.Helper()
		require.NoError(t, b.c.SubResource("scale").Update(t.Context(), gateway(), client.WithSubResourceBody(&autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: n}})))
	}
	until := func(n int32) {
		t.Helper()
		require.Eventually(t, func() bool { return *gateway().Spec.Replicas == n }, wait, tick)
	}
	scale(5)
	until(2)
	hpa := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "gateways"}, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{MaxReplicas: 9,
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "w-gateway"}}}
	require.NoError(t, b.c.Create(t.Context(), hpa))
	known := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool {
			found, err := b.r.autoscalersOf(t.Context(), b.namespace, "apps", "Deployment", "w-gateway")
			return err == nil && len(found) == n
		}, wait, tick)
	}
	known(1)
	scale(7)
	// The new grace period proves that the Deployment was written, and that its number was not.
	b.change(`{"spec":{"gateway":{"template":{"spec":{"terminationGracePeriodSeconds":120}}}}}`)
	require.Eventually(t, func() bool { return *gateway().Spec.Template.Spec.TerminationGracePeriodSeconds == 120 }, wait, tick)
	require.EqualValues(t, 7, *gateway().Spec.Replicas)
	require.NoError(t, b.c.Delete(t.Context(), hpa))
	known(0)
	b.change(`{"metadata":{"annotations":{"look":"again"}}}`)
	until(2)
}

func TestSeveralRanksPerPod(t *testing.T) {
	b := newBed(t)
	d := b.deployment("w", 2)
	d.Spec.RanksPerPod = 2
	require.NoError(t, b.c.Create(t.Context(), d))
	d = b.ready("w")
	require.EqualValues(t, []int32{4, 2, 2}, []int32{d.Status.Ranks, d.Status.Replicas, d.Status.ReadyReplicas})
	p := b.pod("w-0")
	var names []string
	for _, c := range p.Spec.Containers {
		names = append(names, c.Name)
	}
	require.Equal(t, []string{"agent", "engine-0", "engine-1"}, names)
	memory := p.Spec.Containers[0].Resources.Limits[corev1.ResourceMemory]
	require.EqualValues(t, 2*(64+16)<<20+256<<20, memory.Value(), "all ranks' memory, and what the agent needs itself")
	b.scale(3)
	d = b.ready("w")
	require.EqualValues(t, 6, d.Status.Ranks)
}

// Huge pages are requested in whole pages, in addition to the agent's own memory, and the agent's file enables them.
func TestHugePages(t *testing.T) {
	b := newBed(t)
	d := b.deployment("w", 1)
	d.Spec.RanksPerPod, d.Spec.Memory.PageSize, d.Spec.Memory.Weights = 2, api.Page2Mi, resource.MustParse("63Mi")
	require.NoError(t, b.c.Create(t.Context(), d))
	d = b.ready("w")
	agent := b.pod("w-0").Spec.Containers[0].Resources
	for _, list := range []corev1.ResourceList{agent.Requests, agent.Limits} {
		pages, memory := list["hugepages-2Mi"], list[corev1.ResourceMemory]
		require.EqualValues(t, 2*(64+16)<<20, pages.Value())
		require.EqualValues(t, 256<<20, memory.Value())
	}
	file := b.agentConfig(d)
	require.Equal(t, true, file["hugetlb"])
	require.EqualValues(t, 2<<20, file["page_bytes"], "experts begin at whole pages")
}

// Every container requests CPU by default: without a request it would get almost none on a busy node, and streams go
// through gateways. Values in the spec are kept.
func TestContainersRequestCPU(t *testing.T) {
	b := newBed(t)
	d := b.deployment("w", 1)
	d.Spec.Template.Spec.Containers = []api.ContainerTemplate{{Name: containerEngine, Resources: api.Resources{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")}}}}
	require.NoError(t, b.c.Create(t.Context(), d))
	b.ready("w")
	agent, engine := b.pod("w-0").Spec.Containers[0].Resources, b.pod("w-0").Spec.Containers[1].Resources
	require.Equal(t, "100m", agent.Requests.Cpu().String())
	require.Equal(t, []string{"3", "3"}, []string{engine.Requests.Cpu().String(), engine.Limits.Cpu().String()}, "a limit alone is what is asked for")
	gateway := &appsv1.Deployment{}
	require.NoError(t, b.c.Get(t.Context(), client.ObjectKey{Namespace: b.namespace, Name: gatewayName(d)}, gateway))
	require.Equal(t, "200m", gateway.Spec.Template.Spec.Containers[0].Resources.Requests.Cpu().String())
}

// By default, staging may use all capacity that serving leaves, while steps take at most twice as long.
func TestStagingPercent(t *testing.T) {
	b := newBed(t)
	plain := b.agentConfig(b.serve("w", 1))
	require.EqualValues(t, 100, plain["staging_percent"])
	require.EqualValues(t, 100, plain["max_step_stretch_percent"])
	d := b.deployment("x", 1)
	d.Spec.Transition.BandwidthPercent, d.Spec.Tuning.MaxStepStretchPercent = 25, 50
	require.NoError(t, b.c.Create(t.Context(), d))
	file := b.agentConfig(b.ready("x"))
	require.EqualValues(t, 25, file["staging_percent"])
	require.EqualValues(t, 50, file["max_step_stretch_percent"])
}

// With strategy Fast, engines pause steps while bytes move, except in a first layout and a repair.
func TestStrategyFast(t *testing.T) {
	b := newBed(t)
	b.mayHarm = true
	b.serve("w", 3)
	b.change(`{"spec":{"transition":{"strategy":"Fast"}}}`)
	b.change(`{"spec":{"parallelism":{"mode":"TensorParallel"}}}`)
	b.until("w", "mode TensorParallel", func(d *api.MoEDeployment) bool { return d.Status.Mode == "TensorParallel" })
	paused := b.world("w").Paused()
	require.Greater(t, len(paused), 1)
	for attempt, is := range paused {
		require.Equal(t, attempt > 1, is, "attempt %d of %v", attempt, paused)
	}
	before := b.get("w")
	b.die(b.podNames("w")[0])
	b.repaired(3, before.Status.Epoch)
	var repairs, others int
	for attempt, is := range b.world("w").Paused() {
		if _, known := paused[attempt]; !known && is {
			others++ // the new rank joins
		} else if !known {
			repairs++
		}
	}
	require.Positive(t, repairs)
	require.Positive(t, others)
	b.change(`{"spec":{"transition":{"strategy":"Smooth"},"parallelism":{"mode":"ExpertParallel"}}}`)
	b.until("w", "mode ExpertParallel", func(d *api.MoEDeployment) bool { return d.Status.Mode == api.ModeExpert })
	all := b.world("w").Paused()
	require.False(t, all[slices.Max(slices.Collect(maps.Keys(all)))])
}

// A spec that the API server rejects does not affect the existing world.
func TestRejectedSpecDoesNotAffectWorld(t *testing.T) {
	b := newBed(t)
	before := b.serve("w", 2)
	for patch, words := range map[string]string{
		`{"spec":{"replicas":0}}`:                                                   "To stop serving, delete the MoEDeployment",
		`{"spec":{"parallelism":{"mode":"Auto","layers":[{}]}}}`:                    "mode and layers contradict each other",
		`{"spec":{"memory":{"weights":"128Mi"}}}`:                                   "The memory is immutable",
		`{"spec":{"ranksPerPod":2}}`:                                                "ranksPerPod is immutable",
		`{"spec":{"experts":{"redundant":{"count":1}}}}`:                            "Rebalancing places redundant experts",
		`{"spec":{"model":{"source":{"persistentVolumeClaim":{"claimName":"x"}}}}}`: "model.source is immutable",
	} {
		d := &api.MoEDeployment{ObjectMeta: metav1.ObjectMeta{Name: "w", Namespace: b.namespace}}
		require.ErrorContains(t, b.c.Patch(t.Context(), d, client.RawPatch("application/merge-patch+json", []byte(patch))), words, patch)
	}
	after := b.get("w")
	require.Equal(t, before.Generation, after.Generation)
	require.Equal(t, before.Status.Epoch, after.Status.Epoch)
}

// The API server rejects a spec that overrides the operator's settings of an engine, with the field and the reason.
func TestEngineSpecRejectsProtectedSettings(t *testing.T) {
	b := newBed(t)
	given := b.r.engineContainer(b.deployment("w", 1), 0)
	for _, arg := range given.Args {
		flag, _, _ := strings.Cut(arg, "=")
		for _, args := range [][]string{{flag, "x"}, {"--max-model-len=512", flag + "=x"}} {
			d := b.deployment("w", 1)
			d.Spec.Engine.Args = args
			require.ErrorContains(t, b.c.Create(t.Context(), d), "spec.engine.args: Invalid value", flag)
		}
	}
	for _, env := range given.Env {
		d := b.deployment("w", 1)
		d.Spec.Template.Spec.Containers = []api.ContainerTemplate{{Name: containerEngine, Env: []api.EnvVar{{Name: "A"}, {Name: env.Name, Value: "x"}}}}
		require.ErrorContains(t, b.c.Create(t.Context(), d), "Remove them from env", env.Name)
	}
	d := b.deployment("w", 1)
	d.Spec.Engine.Args = []string{"--max-model-len", "512", "--devices", "--tls"}
	d.Spec.Template.Spec.Containers = []api.ContainerTemplate{{Name: containerEngine, Env: []api.EnvVar{{Name: "POD"}}}}
	require.NoError(t, b.c.Create(t.Context(), d))
}

// requireScale checks that /scale of world w counts the pods that its selector finds.
func (b *bed) requireScale() {
	b.t.Helper()
	d := b.get("w")
	scale := &autoscalingv1.Scale{}
	require.Eventually(b.t, func() bool {
		require.NoError(b.t, b.c.SubResource("scale").Get(b.t.Context(), d, scale))
		selector, err := k8slabels.Parse(scale.Status.Selector)
		require.NoError(b.t, err)
		require.False(b.t, selector.Empty(), "a selector of everything")
		var list corev1.PodList
		require.NoError(b.t, b.c.List(b.t.Context(), &list, client.InNamespace(b.namespace), client.MatchingLabelsSelector{Selector: selector}))
		return len(list.Items) == int(scale.Status.Replicas) && scale.Spec.Replicas == b.get("w").Spec.Replicas
	}, wait, tick, "status.replicas counts the pods that the selector finds: %+v", scale)
}

// A scale subresource, with a pod of a gateway, a foreign pod and a second world in the namespace.
func TestScaleSubresourceCountsItsPods(t *testing.T) {
	b := newBed(t)
	other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "other", Namespace: b.namespace, Labels: map[string]string{api.WorldLabel: "w", api.ComponentLabel: api.ComponentGateway}},
		Spec: corev1.PodSpec{SecurityContext: restrictedPod(), Containers: []corev1.Container{{Name: "c", Image: "i", SecurityContext: restricted()}}}}
	require.NoError(t, b.c.Create(t.Context(), other))
	b.serve("v", 1)
	b.let(fate{unschedulable: "0/2 nodes are available"}, "w-2")
	require.NoError(t, b.c.Create(t.Context(), b.deployment("w", 2)))
	b.until("w", "has a selector", func(d *api.MoEDeployment) bool { return d.Status.Selector != "" })
	b.requireScale()
	b.ready("w")
	b.requireScale()
	scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: 3}}
	require.NoError(t, b.c.SubResource("scale").Update(t.Context(), b.get("w"), client.WithSubResourceBody(scale)))
	b.degraded("w", api.ReasonPodsUnschedulable)
	b.requireScale()
	require.EqualValues(t, 3, b.get("w").Status.Replicas, "a pod that waits for a node counts")
	b.scale(1)
	b.ready("w")
	b.requireScale()
	require.True(t, slices.Equal(b.podNames("w"), []string{"w-0"}))
}

// The gateways' Service follows the spec, also after a change.
func TestGatewayService_WhenSpecChanges(t *testing.T) {
	b := newBed(t)
	d := b.deployment("w", 1)
	d.Spec.Gateway.Service = api.GatewayService{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: ptr.To("example.com/x"), Annotations: map[string]string{"a": "1", "b": "2"}}
	require.NoError(t, b.c.Create(t.Context(), d))
	service := func() *corev1.Service {
		s := &corev1.Service{}
		if b.c.Get(t.Context(), client.ObjectKey{Namespace: b.namespace, Name: gatewayName(d)}, s) != nil {
			return nil
		}
		return s
	}
	require.Eventually(t, func() bool { return service() != nil }, wait, tick)
	require.Equal(t, []any{corev1.ServiceTypeLoadBalancer, "example.com/x", map[string]string{"a": "1", "b": "2"}},
		[]any{service().Spec.Type, *service().Spec.LoadBalancerClass, service().Annotations})
	b.change(`{"spec":{"gateway":{"service":{"type":"ClusterIP","loadBalancerClass":null,"annotations":{"a":null,"b":"3"}}}}}`)
	require.Eventually(t, func() bool {
		s := service()
		return s.Spec.Type == corev1.ServiceTypeClusterIP && s.Spec.LoadBalancerClass == nil && len(s.Annotations) == 1 && s.Annotations["b"] == "3"
	}, wait, tick)
}
