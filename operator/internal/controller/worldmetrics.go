package controller

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"tangram.dev/operator/pkg/telemetry"
)

// worldMetrics exports the load of each world once, for all its gateways: the last reading at the time of a scrape. A
// world without a reading has no series.
type worldMetrics struct {
	figures []worldFigure
	readers sync.Map // loadReader by types.NamespacedName
}

// loadReader returns the last reading of a world; readings.Reader implements it.
type loadReader interface {
	Last(seconds float64) (*telemetry.Sample, *telemetry.Window, error)
}

type worldFigure struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*telemetry.Sample) float64
}

func newWorldMetrics() *worldMetrics {
	m := &worldMetrics{}
	add := func(kind prometheus.ValueType, name, help string, value func(*telemetry.Sample) float64) {
		desc := prometheus.NewDesc(namespaceOfMetrics+"_world_"+name, help, []string{"namespace", "name"}, nil)
		m.figures = append(m.figures, worldFigure{desc, kind, value})
	}
	gauge := func(name, help string, value func(*telemetry.Gauges) float64) {
		add(prometheus.GaugeValue, name, help, func(s *telemetry.Sample) float64 { return value(&s.Gauges) })
	}
	counter := func(name, help string, value func(*telemetry.Counters) float64) {
		add(prometheus.CounterValue, name, help, func(s *telemetry.Sample) float64 { return value(&s.Total) })
	}
	gauge("requests_running", "Requests that the engines of the world have admitted.",
		func(g *telemetry.Gauges) float64 { return float64(g.Running) })
	gauge("requests_waiting", "Requests that wait at an engine or for a rank.",
		func(g *telemetry.Gauges) float64 { return float64(g.WaitingRequests()) })
	gauge("kv_cache_usage_ratio", "Used part of the KV cache, from 0 to 1.",
		func(g *telemetry.Gauges) float64 { return g.KVUsage() })
	gauge("queue_age_seconds", "Waiting time of the oldest waiting request.",
		func(g *telemetry.Gauges) float64 { return g.QueueAge })
	gauge("queued_prompt_tokens", "Prompt tokens that the engines have yet to compute.",
		func(g *telemetry.Gauges) float64 { return float64(g.QueuedTokens) })
	gauge("stale_ranks", "Ranks whose last load report is too old.",
		func(g *telemetry.Gauges) float64 { return float64(g.Silent) })
	counter("prefill_tokens_total", "Prompt tokens that the engines computed.",
		func(c *telemetry.Counters) float64 { return float64(c.PrefillTokens) })
	counter("decode_tokens_total", "Output tokens that the engines computed.",
		func(c *telemetry.Counters) float64 { return float64(c.DecodeTokens) })
	counter("steps_total", "Steps with work.", func(c *telemetry.Counters) float64 { return float64(c.Steps) })
	counter("step_seconds_total", "Time that the steps with work took.",
		func(c *telemetry.Counters) float64 { return c.StepSeconds })
	return m
}

// Describe implements prometheus.Collector.
func (m *worldMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, f := range m.figures {
		out <- f.desc
	}
}

// Collect implements prometheus.Collector.
func (m *worldMetrics) Collect(out chan<- prometheus.Metric) {
	m.readers.Range(func(key, reader any) bool {
		k, of := key.(types.NamespacedName), reader.(loadReader) //nolint:forcetypeassert // nothing else is stored
		s, _, err := of.Last(loadWindow)
		if err != nil {
			return true // the current load is unknown
		}
		for _, f := range m.figures {
			out <- prometheus.MustNewConstMetric(f.desc, f.kind, f.value(s), k.Namespace, k.Name)
		}
		return true
	})
}
