package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"tangram.dev/api/v1alpha2"
	"tangram.dev/e2e/kube"
	"tangram.dev/e2e/load"
)

// few repeats some requests as fast as answers arrive; the reference computes each only once.
type few struct{ *load.Trace }

func (f few) At(i int) load.Request {
	r := f.Trace.At(i % 24)
	r.Index, r.Arrival = i, 0
	return r
}

// A HorizontalPodAutoscaler of the real controller sets a world's number of ranks by the operator's metrics: high load
// adds ranks, low load removes them, and no client loses a token.
func TestAutoscalerSetsReplicas(t *testing.T) {
	k := namespace(t, "")
	serve(t, k, 2, nil)
	require.NoError(t, up.Kube.Wait(t.Context(), "apiservice/v1beta2.custom.metrics.k8s.io", "Available", limit))
	world := autoscalingv2.CrossVersionObjectReference{APIVersion: v1alpha2.GroupVersion.String(), Kind: "MoEDeployment", Name: name}
	at := func(seconds int32) *autoscalingv2.HPAScalingRules {
		return &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: ptr.To[int32](0), Policies: []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PodsScalingPolicy, Value: 2, PeriodSeconds: seconds}}}
	}
	require.NoError(t, k.Apply(t.Context(), &autoscalingv2.HorizontalPodAutoscaler{
		TypeMeta: metav1.TypeMeta{APIVersion: "autoscaling/v2", Kind: "HorizontalPodAutoscaler"}, ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{ScaleTargetRef: world, MinReplicas: ptr.To[int32](2), MaxReplicas: 4,
			Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: at(15), ScaleDown: at(15)},
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{DescribedObject: world,
				Metric: autoscalingv2.MetricIdentifier{Name: "tangram_operator_world_requests"},
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: ptr.To(resource.MustParse("3"))}}}}}}))

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := client(t, k)
	ask := func(atOnce int) (leave func() []*load.Result) {
		stop, played := make(chan struct{}), make(chan []*load.Result, 1)
		go func() { played <- c.Play(ctx, few{newTrace(t)}, atOnce, stop) }()
		return func() []*load.Result { close(stop); return <-played }
	}
	wide := func(pods int32) {
		t.Helper()
		began := time.Now()
		eventually(t, fmt.Sprintf("%d pods, by the autoscaler", pods), func() (bool, string) {
			d := deployment(t, k)
			var h autoscalingv2.HorizontalPodAutoscaler
			require.NoError(t, k.Get(t.Context(), &h, "hpa/"+name))
			return d.Spec.Replicas == pods && d.Status.Ranks == pods && d.Status.Transition == nil, fmt.Sprintf("width %d of %d; %v %+v", d.Status.Ranks, d.Spec.Replicas, h.Status.CurrentMetrics, h.Status.Conditions)
		})
		t.Logf("%d ranks after %.0f s", pods, time.Since(began).Seconds())
	}
	some := ask(2)
	many := ask(10)
	wide(4)
	requireMetrics(t, k)
	requireOwnerOfReplicas(t, k)
	results := many()
	wide(2)
	results = append(results, some()...)
	for _, r := range results {
		require.NoError(t, r.Err, "request %d was lost", r.Request.Index)
	}
	require.NoError(t, k.Wait(t.Context(), object, v1alpha2.ConditionReady, limit))
	requireAtRest(t, k, "demo-0", "demo-1")
	requireOneRanksTokens(t, results)

	var what []string
	all, err := k.Transitions(t.Context(), name)
	require.NoError(t, err)
	for _, lt := range all {
		what = append(what, lt.Spec.Summary)
	}
	// In one or two transitions: the autoscaler may check while some of the load still runs.
	wider := slices.IndexFunc(what, func(w string) bool { return strings.HasSuffix(w, "-> 4 ranks ExpertParallel") })
	require.Positive(t, wider, "%v", what)
	require.True(t, strings.HasSuffix(what[len(what)-1], "-> 2 ranks ExpertParallel"), "%v", what)
	require.Less(t, wider, len(what)-1, "%v", what)
	t.Logf("%d requests; %s", len(results), strings.Join(what, ", "))
}

// requireMetrics reads each metric in the discovery list, as a user who may read custom metrics.
func requireMetrics(t *testing.T, k *kube.Client) {
	t.Helper()
	const group = "/apis/custom.metrics.k8s.io/v1beta2"
	raw := func(path string, into any) {
		t.Helper()
		text, err := k.Run(t.Context(), nil, "get", "--raw", path)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal([]byte(text), into), text)
	}
	var list metav1.APIResourceList
	raw(group, &list)
	require.Greater(t, len(list.APIResources), 8)
	type value struct {
		Metric    struct{ Name string }
		Timestamp metav1.Time
		Value     resource.Quantity
	}
	seen := map[string]resource.Quantity{}
	for _, r := range list.APIResources {
		_, metric, _ := strings.Cut(r.Name, "/")
		path := fmt.Sprintf("%s/namespaces/%s/moedeployments.serving.tangram.dev/%s/%s", group, k.Namespace, name, metric)
		if metric == "tangram_operator_world_slo_missed_ratio" {
			path += "?metricLabelSelector=ttft%3D1ms"
		}
		var got struct{ Items []value }
		eventually(t, metric, func() (bool, string) { // latencies exist after the first answer
			text, err := k.Run(t.Context(), nil, "get", "--raw", path)
			if err != nil {
				return false, err.Error()
			}
			require.NoError(t, json.Unmarshal([]byte(text), &got), text)
			return len(got.Items) == 1, text
		})
		require.Equal(t, metric, got.Items[0].Metric.Name)
		require.WithinDuration(t, time.Now(), got.Items[0].Timestamp.Time, limit)
		seen[metric] = got.Items[0].Value
	}
	for metric, v := range seen {
		t.Log(metric, v.String())
	}
	asked := seen["tangram_operator_world_requests"]
	require.Positive(t, asked.Value())
	first := seen["vllm:time_to_first_token_seconds_p99"]
	require.Positive(t, first.AsApproximateFloat64())
	late := seen["tangram_operator_world_slo_missed_ratio"]
	require.InDelta(t, 1, late.AsApproximateFloat64(), 0, "no answer begins within a millisecond")
}

// requireOwnerOfReplicas checks that only the autoscaler owns the field, through the scale subresource.
func requireOwnerOfReplicas(t *testing.T, k *kube.Client) {
	t.Helper()
	var d v1alpha2.MoEDeployment
	require.NoError(t, k.Get(t.Context(), &d, object, "--show-managed-fields"))
	owners := slices.DeleteFunc(d.ManagedFields, func(f metav1.ManagedFieldsEntry) bool {
		var fields map[string]map[string]any
		require.NoError(t, json.Unmarshal(f.FieldsV1.GetRawBytes(), &fields))
		_, owns := fields["f:spec"]["f:replicas"]
		return !owns
	})
	require.Len(t, owners, 1, "%v", owners)
	require.Equal(t, "scale", owners[0].Subresource, "%v", owners[0])
	require.NotContains(t, owners[0].Manager, "tangram")
}
