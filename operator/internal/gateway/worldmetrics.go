package gateway

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tangram.dev/operator/pkg/telemetry"
)

// worldMetrics are what the engines of the world tell, at the time of a scrape. A world is one model instance, as a server of vLLM's
// is: names are vLLM's where the meaning is. Every gateway of a world tells the same: take the largest, not the sum.
type worldMetrics struct {
	pool *Pool
	of   []worldFigure

	mu     sync.Mutex
	merger *telemetry.Merger // ranks come and go: what they counted must not
}

type worldFigure struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*telemetry.Sample) float64
}

// NewWorldMetrics of a pool, for a model of this name.
func NewWorldMetrics(p *Pool, model string) prometheus.Collector {
	m := &worldMetrics{pool: p, merger: telemetry.NewMerger(p.o.World)}
	add := func(kind prometheus.ValueType, name, help string, value func(*telemetry.Sample) float64) {
		m.of = append(m.of, worldFigure{prometheus.NewDesc(name, help+" Of the whole world: every gateway of it tells the same.", nil, prometheus.Labels{"model_name": model}), kind, value})
	}
	gauge := func(name, help string, value func(*telemetry.Gauges) float64) {
		add(prometheus.GaugeValue, name, help, func(s *telemetry.Sample) float64 { return value(&s.Gauges) })
	}
	counter := func(name, help string, value func(*telemetry.Counters) float64) {
		add(prometheus.CounterValue, name, help, func(s *telemetry.Sample) float64 { return value(&s.Total) })
	}
	gauge("vllm:num_requests_running", "Requests that were admitted.", func(g *telemetry.Gauges) float64 { return float64(g.Running) })
	gauge("vllm:num_requests_waiting", "Requests that wait to be admitted.", func(g *telemetry.Gauges) float64 { return float64(g.Waiting) })
	gauge("vllm:kv_cache_usage_perc", "Share of the KV pages that are in use, 0 to 1.", func(g *telemetry.Gauges) float64 {
		if g.KVPages == 0 {
			return 0
		}
		return 1 - float64(g.KVFree)/float64(g.KVPages)
	})
	gauge("tangram_gateway_world_queue_age_seconds", "Time that the oldest request waits.", func(g *telemetry.Gauges) float64 { return g.QueueAge })
	gauge("tangram_gateway_world_queued_prompt_tokens", "Prompt tokens that are to be computed yet.", func(g *telemetry.Gauges) float64 { return float64(g.QueuedTokens) })
	gauge("tangram_gateway_world_silent_ranks", "Members that told nothing lately.", func(g *telemetry.Gauges) float64 { return float64(g.Silent) })
	counter("tangram_gateway_world_prefill_tokens_total", "Tokens of prompts that were computed.", func(c *telemetry.Counters) float64 { return float64(c.PrefillTokens) })
	counter("tangram_gateway_world_decode_tokens_total", "Tokens of answers that were computed.", func(c *telemetry.Counters) float64 { return float64(c.DecodeTokens) })
	counter("tangram_gateway_world_steps_total", "Steps with work.", func(c *telemetry.Counters) float64 { return float64(c.Steps) })
	counter("tangram_gateway_world_step_seconds_total", "Seconds in these.", func(c *telemetry.Counters) float64 { return c.StepSeconds })
	counter("tangram_gateway_world_paced_steps_total", "Steps that a table had a time for.", func(c *telemetry.Counters) float64 { return float64(c.PacedSteps) })
	counter("tangram_gateway_world_pace_overruns_total", "Of these, those that took longer.", func(c *telemetry.Counters) float64 { return float64(c.Overruns) })
	counter("tangram_gateway_world_pace_cut_total", "Of these, those that were cut short.", func(c *telemetry.Counters) float64 { return float64(c.Cut) })
	return m
}

// Describe implements prometheus.Collector.
func (m *worldMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, f := range m.of {
		out <- f.desc
	}
}

// Collect implements prometheus.Collector. What cannot be right is not told.
func (m *worldMetrics) Collect(out chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	report := m.pool.Telemetry()
	sample, err := m.merger.Take(time.Since(m.pool.born).Seconds(), []telemetry.Read{{Gateway: report.Gateway, Report: report}})
	if err != nil {
		m.pool.o.Log.Warn("the world's metrics are left out", "cause", err)
		return
	}
	for _, f := range m.of {
		out <- prometheus.MustNewConstMetric(f.desc, f.kind, f.value(sample))
	}
}
