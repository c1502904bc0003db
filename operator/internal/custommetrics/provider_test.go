package custommetrics

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/metrics/pkg/apis/custom_metrics"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/provider"

	"tangram.dev/operator/internal/readings"
	"tangram.dev/operator/pkg/telemetry"
)

type worlds map[types.NamespacedName]any // a readings.Reading or an error

func (w worlds) Load(_ context.Context, name types.NamespacedName, seconds time.Duration) (readings.Reading, error) {
	if seconds != time.Minute {
		return readings.Reading{}, errors.New("another window")
	}
	switch x := w[name].(type) {
	case readings.Reading:
		return x, nil
	case error:
		return readings.Reading{}, x
	}
	return readings.Reading{}, apierrors.NewNotFound(moedeployments, name.Name)
}

func (w worlds) Find(_ context.Context, namespace string, _ labels.Selector) ([]types.NamespacedName, error) {
	var out []types.NamespacedName
	for _, name := range []string{"busy", "silent", "idle"} {
		if name := (types.NamespacedName{Namespace: namespace, Name: name}); w[name] != nil {
			out = append(out, name)
		}
	}
	return out, nil
}

func of(name string) types.NamespacedName { return types.NamespacedName{Namespace: "a", Name: name} }

// loads returns three worlds: a busy one, an idle one, and one whose load is unknown.
func loads() (worlds, time.Time) {
	at := time.Now().Add(-time.Second)
	answers := telemetry.Latencies{}
	for range 99 {
		answers.Note(telemetry.Bound(0), 9*telemetry.Bound(-24), 10)
	}
	answers.Note(telemetry.Bound(16), 9*telemetry.Bound(-24), 10) // four seconds
	busy := readings.Reading{At: at, Sample: &telemetry.Sample{Gauges: telemetry.Gauges{Ranks: 4, Running: 5, Waiting: 2, Homeless: 1, QueueAge: 1.5, QueuedTokens: 77, KVPages: 200, KVFree: 50}},
		Window: &telemetry.Window{Seconds: 50, Grown: telemetry.Counters{Written: 1000}, Answers: answers}}
	idle := readings.Reading{At: at, Sample: &telemetry.Sample{}, Window: &telemetry.Window{Seconds: 60, Answers: telemetry.Latencies{}}}
	return worlds{of("busy"): busy, of("idle"): idle, of("silent"): errors.New("telemetry: no report was read for 12.0 s, more than 10")}, at
}

func TestMetricValues(t *testing.T) {
	all, at := loads()
	p := &Provider{all}
	want := map[string][2]float64{ // busy, idle
		"tangram_operator_world_requests_running": {5, 0}, "tangram_operator_world_requests_waiting": {3, 0},
		"tangram_operator_world_requests": {8, 0}, "tangram_operator_world_kv_cache_usage_ratio": {.75, 0},
		"tangram_operator_world_queue_age_seconds": {1.5, 0}, "tangram_operator_world_queued_prompt_tokens": {77, 0},
		"tangram_operator_world_tokens_per_second": {20, 0},
		"vllm:time_to_first_token_seconds_p99":     {1, 0}, "vllm:request_time_per_output_token_seconds_p99": {.125, 0},
		"tangram_operator_world_slo_missed_ratio": {.01, 0},
	}
	listed := p.ListAllMetrics()
	require.Len(t, listed, len(want))
	for _, info := range listed {
		require.Contains(t, want, info.Metric)
		require.Equal(t, provider.CustomMetricInfo{GroupResource: moedeployments, Namespaced: true, Metric: info.Metric}, info)
		s := labels.Everything()
		if info.Metric == missed {
			s = labels.SelectorFromSet(labels.Set{"ttft": "1s"}) // a bucket's bound
		}
		for i, name := range []string{"busy", "idle"} {
			v, err := p.GetMetricByName(t.Context(), of(name), info, s)
			require.NoError(t, err)
			require.InDelta(t, want[info.Metric][i], v.Value.AsApproximateFloat64(), 1e-9, "%s of %s", info.Metric, name)
			require.WithinDuration(t, at, v.Timestamp.Time, 0, "as old as the reading")
			require.Equal(t, custom_metrics.ObjectReference{APIVersion: "serving.tangram.dev/v1alpha2", Kind: "MoEDeployment", Namespace: "a", Name: name}, v.DescribedObject)
			f, _ := find(info.Metric)
			require.Equal(t, f.window, v.WindowSeconds != nil)
		}
		_, err := p.GetMetricByName(t.Context(), of("silent"), info, s)
		require.True(t, apierrors.IsServiceUnavailable(err), "nothing is known: %v", err)
		require.ErrorContains(t, err, "MoEDeployment a/silent: telemetry: no report was read for 12.0 s")
		_, err = p.GetMetricByName(t.Context(), of("none"), info, s)
		require.True(t, apierrors.IsNotFound(err))
		list, err := p.GetMetricBySelector(t.Context(), "a", labels.Everything(), info, s)
		require.NoError(t, err)
		require.Len(t, list.Items, 2, "who tells nothing is left out")
	}
}

// An unknown latency is reported as unknown; otherwise an autoscaler would act on it.
func TestLatency_WhenNoRequestCompleted(t *testing.T) {
	all, at := loads()
	all[of("idle")] = readings.Reading{At: at, Sample: &telemetry.Sample{Gauges: telemetry.Gauges{Waiting: 3}}, Window: &telemetry.Window{Seconds: 60, Answers: telemetry.Latencies{}}}
	p := &Provider{all}
	for _, metric := range []string{"vllm:time_to_first_token_seconds_p99", "vllm:request_time_per_output_token_seconds_p99"} {
		_, err := p.GetMetricByName(t.Context(), of("idle"), provider.CustomMetricInfo{GroupResource: moedeployments, Metric: metric}, labels.Everything())
		require.True(t, apierrors.IsServiceUnavailable(err))
		require.ErrorContains(t, err, "no answer ended in the last 1m0s, but 3 requests are running or waiting")
	}
}

func TestGetMetricRejectsInvalidQueries(t *testing.T) {
	all, _ := loads()
	p := &Provider{all}
	for _, x := range []struct {
		group, metric, selector string
		words                   string
	}{
		{"moedeployments", "tangram_world_request", "", "could not find"},
		{"pods", "tangram_operator_world_requests", "", "could not find"},
		{"moedeployments", "tangram_operator_world_requests", "ttft=2s", "metric tangram_operator_world_requests has no labels"},
		{"moedeployments", missed, "", "an SLO needs a TTFT or a TPOT; set one in the selector of the metric"},
		{"moedeployments", missed, "ttft=soon", `ttft: "soon" is not a duration above 0`},
		{"moedeployments", missed, "tpot=-1s", `is not a duration above 0`},
		{"moedeployments", missed, "ttft!=2s", "use the labels ttft and tpot"},
		{"moedeployments", missed, "model=m,ttft=2s", "use the labels ttft and tpot"},
	} {
		s := labels.Everything()
		if x.selector == "tpot=-1s" { // not a valid label value, but not every caller is kubectl
			s = labels.SelectorFromValidatedSet(labels.Set{"tpot": "-1s"})
		} else if x.selector != "" {
			var err error
			s, err = labels.Parse(x.selector)
			require.NoError(t, err)
		}
		resource := schema.GroupResource{Resource: x.group}
		if x.group == "moedeployments" {
			resource = moedeployments
		}
		_, err := p.GetMetricByName(t.Context(), of("busy"), provider.CustomMetricInfo{GroupResource: resource, Metric: x.metric}, s)
		require.ErrorContains(t, err, x.words)
		require.True(t, apierrors.IsBadRequest(err) || apierrors.IsNotFound(err))
	}
	v, err := p.GetMetricByName(t.Context(), of("busy"), provider.CustomMetricInfo{GroupResource: moedeployments, Metric: missed}, labels.SelectorFromSet(labels.Set{"ttft": "4s", "tpot": "50ms"}))
	require.NoError(t, err)
	require.InDelta(t, 1, v.Value.AsApproximateFloat64(), 0, "tokens are 125 ms apart")
	require.Equal(t, map[string]string{"ttft": "4s", "tpot": "50ms"}, v.Metric.Selector.MatchLabels)
}
