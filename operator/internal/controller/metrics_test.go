package controller

import (
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "tangram.dev/api/v1alpha2"
	"tangram.dev/operator/internal/custommetrics"
	"tangram.dev/operator/internal/gateway"
	"tangram.dev/operator/pkg/telemetry"
)

// exported collects the names of the metrics that a component registers.
type exported struct {
	prometheus.Registerer
	names []string
}

var fullName = regexp.MustCompile(`fqName: "([^"]+)"`)

func (e *exported) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		descriptions := make(chan *prometheus.Desc, 16)
		c.Describe(descriptions)
		close(descriptions)
		for d := range descriptions {
			e.names = append(e.names, fullName.FindStringSubmatch(d.String())[1])
		}
	}
}

// A metric's name has one meaning across components, and the names in the docs and the chart's alerts are exported.
func TestMetricNamesAreUniqueAndDocumented(t *testing.T) {
	var operator, gateways exported
	NewMetrics(&operator)
	pool := gateway.NewPool(gateway.Options{World: "w", Log: slog.New(slog.DiscardHandler), Metrics: gateway.NewMetrics(&gateways, "m")})
	t.Cleanup(pool.Close)
	gateways.MustRegister(gateway.NewRequestMetrics(pool, "m"))
	components := map[string][]string{"operator": operator.names, "gateway": gateways.names, "agent": inSources(t, "agent", ".cc")}
	owner := map[string]string{}
	for component, names := range components {
		require.Greater(t, len(names), 5, component)
		for _, name := range names {
			require.Empty(t, owner[name], "%s, of %s", name, component)
			owner[name] = component
			for other := range components {
				if component == "gateway" && strings.HasPrefix(name, "vllm:") {
					continue // the same meaning as in vLLM
				}
				require.Equal(t, other == component, strings.HasPrefix(name, "tangram_"+other+"_"), "%s, of %s", name, component)
			}
		}
	}
	// Metrics for autoscalers: a name that another component exports, too, has the same meaning.
	for _, served := range (&custommetrics.Provider{}).ListAllMetrics() {
		if _, exported := owner[served.Metric]; !exported && !strings.HasPrefix(served.Metric, "vllm:") {
			require.True(t, strings.HasPrefix(served.Metric, "tangram_operator_"), served.Metric)
			owner[served.Metric] = "operator"
		}
	}
	reference, err := os.ReadFile(filepath.Join(root(), "docs", "telemetry.md"))
	require.NoError(t, err)
	for name := range owner {
		require.Contains(t, string(reference), "`"+name+"`", "the reference of metrics lacks it")
	}
	for _, name := range inSources(t, "docs", ".md") {
		require.Contains(t, slices.Collect(maps.Keys(owner)), name)
	}
	alerts, err := os.ReadFile(filepath.Join(root(), "charts", "tangram", "templates", "rules.yaml"))
	require.NoError(t, err)
	used := regexp.MustCompile(`tangram_(operator|gateway)_[a-z_]+`).FindAllString(string(alerts), -1)
	require.Greater(t, len(used), 5)
	for _, name := range used {
		require.Contains(t, slices.Collect(maps.Keys(owner)), name)
	}
}

// Outcomes that have not occurred are exported as 0: Prometheus sees no increase where a series begins.
func TestOutcomeCountersStartAtZero(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := NewMetrics(registry)
	d := &api.MoEDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "w"}}
	failed := func() map[string]float64 {
		families, err := registry.Gather()
		require.NoError(t, err)
		out := map[string]float64{}
		for _, family := range families {
			for _, series := range family.Metric {
				for _, label := range series.Label {
					if label.GetName() == "outcome" && label.GetValue() == "Failed" {
						out[family.GetName()] = series.GetCounter().GetValue()
					}
				}
			}
		}
		return out
	}
	m.status(d)
	require.Equal(t, map[string]float64{"tangram_operator_repairs_total": 0, "tangram_operator_transitions_total": 0}, failed())
	m.ended(d, api.PhaseFailed, 1)
	m.status(d)
	require.Equal(t, map[string]float64{"tangram_operator_repairs_total": 0, "tangram_operator_transitions_total": 1}, failed())
	m.forget(types.NamespacedName{Namespace: "a", Name: "w"})
	require.Empty(t, failed())
}

// lastReading is the last reading of a world.
type lastReading struct {
	sample *telemetry.Sample
	err    error
}

func (r *lastReading) Last(float64) (*telemetry.Sample, *telemetry.Window, error) {
	return r.sample, nil, r.err
}

// Totals of a world have one series each; a world whose load is unknown has none.
func TestWorldMetrics_OncePerWorld(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	m := NewMetrics(registry)
	a, b := types.NamespacedName{Namespace: "a", Name: "w"}, types.NamespacedName{Namespace: "b", Name: "w"}
	m.world.readers.Store(a, &lastReading{sample: &telemetry.Sample{
		Gauges: telemetry.Gauges{Running: 7, Waiting: 2, Homeless: 1, QueueAge: 1.5, QueuedTokens: 70, KVPages: 10, KVFree: 4, Ranks: 3, Silent: 1},
		Total:  telemetry.Counters{PrefillTokens: 40, DecodeTokens: 30, Steps: 2, StepSeconds: .25}}})
	m.world.readers.Store(b, &lastReading{err: errors.New("no gateway was queried")})
	got := func() map[string]float64 {
		families, err := registry.Gather()
		require.NoError(t, err)
		out := map[string]float64{}
		for _, family := range families {
			if short, is := strings.CutPrefix(family.GetName(), "tangram_operator_world_"); is {
				require.Len(t, family.Metric, 1)
				require.Equal(t, []string{"w", "a"}, []string{family.Metric[0].Label[0].GetValue(), family.Metric[0].Label[1].GetValue()}, "name, namespace")
				out[short] = family.Metric[0].GetGauge().GetValue() + family.Metric[0].GetCounter().GetValue()
			}
		}
		return out
	}
	require.InDeltaMapValues(t, map[string]float64{"requests_running": 7, "requests_waiting": 3, "kv_cache_usage_ratio": .6, "queue_age_seconds": 1.5,
		"queued_prompt_tokens": 70, "stale_ranks": 1, "prefill_tokens_total": 40, "decode_tokens_total": 30,
		"steps_total": 2, "step_seconds_total": .25}, got(), 1e-9)
	problems, err := testutil.GatherAndLint(registry)
	require.NoError(t, err)
	require.Empty(t, problems)
	m.forget(a)
	require.Empty(t, got())
}

// Each condition has the value 1 for its status, and 0 for the others.
func TestConditionsAreStateSets(t *testing.T) {
	m := NewMetrics(prometheus.NewRegistry())
	d := &api.MoEDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "w"}}
	is := func(condition, status string) float64 {
		return testutil.ToFloat64(m.conditions.WithLabelValues("a", "w", condition, status))
	}
	m.status(d)
	require.InDelta(t, 1, is(api.ConditionReady, "Unknown"), 0)
	d.Status.Conditions = []metav1.Condition{{Type: api.ConditionReady, Status: metav1.ConditionTrue}}
	m.status(d)
	require.Equal(t, []float64{1, 0, 0}, []float64{is(api.ConditionReady, "True"), is(api.ConditionReady, "False"), is(api.ConditionReady, "Unknown")})
	require.Equal(t, 3*len(exportedConditions), testutil.CollectAndCount(m.conditions))
}

var quotedMetric = regexp.MustCompile("[\"`](tangram_[a-z_]+)[\"`]")

// inSources returns the distinct names of metrics in quotes in a folder's files, without tests.
func inSources(t *testing.T, folder, ending string) []string {
	t.Helper()
	found := map[string]bool{}
	require.NoError(t, filepath.WalkDir(filepath.Join(root(), folder), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ending) || strings.HasSuffix(path, "_test"+ending) {
			return err
		}
		text, err := os.ReadFile(path) //nolint:gosec // of this repository
		for _, match := range quotedMetric.FindAllStringSubmatch(string(text), -1) {
			found[match[1]] = true
		}
		return err
	}))
	return slices.Sorted(maps.Keys(found))
}
