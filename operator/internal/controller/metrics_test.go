package controller

import (
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "tangram.dev/api/v1alpha2"
	"tangram.dev/operator/internal/custommetrics"
	"tangram.dev/operator/internal/gateway"
)

// exported are the names that a component registers.
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

// A name of a metric has one meaning, whoever exports it; what the docs and the chart's alerts name is exported.
func TestMetricsHaveOneMeaningPerName(t *testing.T) {
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
					continue // it means what it means there
				}
				require.Equal(t, other == component, strings.HasPrefix(name, "tangram_"+other+"_"), "%s, of %s", name, component)
			}
		}
	}
	for _, served := range (&custommetrics.Provider{}).ListAllMetrics() { // to autoscalers: what another exports, too, means what it means there
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

// Outcomes that did not come yet are told as 0: Prometheus sees no increase where a series begins.
func TestOutcomesAreCountedFromNone(t *testing.T) {
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

var quotedMetric = regexp.MustCompile("[\"`](tangram_[a-z_]+)[\"`]")

// inSources are the names of metrics in quotes, each once, in files of a folder but tests.
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
