package buildinfo

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
)

func TestMetric(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(Metric("tangram_test"))
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Len(t, families, 1)
	require.Equal(t, "tangram_test_build_info", families[0].GetName())
	require.InDelta(t, 1, families[0].Metric[0].GetGauge().GetValue(), 0)
	for _, label := range families[0].Metric[0].Label {
		require.NotEmpty(t, label.GetValue(), label.GetName())
	}
	problems, err := testutil.GatherAndLint(registry)
	require.NoError(t, err)
	require.Empty(t, problems)
}
