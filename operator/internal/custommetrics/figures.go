package custommetrics

import (
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"tangram.dev/operator/internal/readings"
	"tangram.dev/operator/pkg/telemetry"
)

// window is the period over which latencies are measured.
const window = time.Minute

// missed is the metric that needs an SLO.
const missed = "tangram_operator_world_slo_missed_ratio"

// figure is a metric of a world. It has the same name as the Prometheus metric, if there is one (docs/telemetry.md).
type figure struct {
	name   string
	window bool // measured over the last minute
	value  func(readings.Reading, telemetry.SLO) (float64, error)
}

// figures are the served metrics. All are totals of the world: an HPA with a target of type AverageValue divides by the
// number of pods. A value per rank would mislead it in a transition, when active ranks and ready pods differ.
var figures = []figure{
	gauge("tangram_operator_world_requests_running", func(g *telemetry.Gauges) float64 { return float64(g.Running) }),
	gauge("tangram_operator_world_requests_waiting", func(g *telemetry.Gauges) float64 { return float64(g.WaitingRequests()) }),
	gauge("tangram_operator_world_requests", func(g *telemetry.Gauges) float64 { return float64(requests(g)) }),
	gauge("tangram_operator_world_kv_cache_usage_ratio", func(g *telemetry.Gauges) float64 { return g.KVUsage() }),
	gauge("tangram_operator_world_queue_age_seconds", func(g *telemetry.Gauges) float64 { return g.QueueAge }),
	gauge("tangram_operator_world_queued_prompt_tokens", func(g *telemetry.Gauges) float64 { return float64(g.QueuedTokens) }),
	{"tangram_operator_world_tokens_per_second", true, func(r readings.Reading, _ telemetry.SLO) (float64, error) { return r.Window.TokensPerSecond(), nil }},
	latency("vllm:time_to_first_token_seconds_p99", func(l telemetry.Latencies) (float64, bool) { return l.FirstToken(.99) }),
	latency("vllm:request_time_per_output_token_seconds_p99", func(l telemetry.Latencies) (float64, bool) { return l.BetweenTokens(.99) }),
	// The share of missed responses, not of good ones: an HPA scales up when a metric is above its target.
	{missed, true, func(r readings.Reading, slo telemetry.SLO) (float64, error) {
		share, known := r.Window.Answers.Attainment(slo).Share()
		if !known {
			return idle(r)
		}
		return 1 - share, nil
	}},
}

func requests(g *telemetry.Gauges) int { return g.Running + g.WaitingRequests() }

func gauge(name string, value func(*telemetry.Gauges) float64) figure {
	return figure{name, false, func(r readings.Reading, _ telemetry.SLO) (float64, error) { return value(&r.Sample.Gauges), nil }}
}

func latency(name string, value func(telemetry.Latencies) (float64, bool)) figure {
	return figure{name, true, func(r readings.Reading, _ telemetry.SLO) (float64, error) {
		if v, known := value(r.Window.Answers); known {
			return v, nil
		}
		return idle(r)
	}}
}

// idle is the latency if no response completed in the last minute. Without requests it is 0: an HPA does not scale down
// while one of its metrics is unknown. With running or waiting requests it is unknown.
func idle(r readings.Reading) (float64, error) {
	if n := requests(&r.Sample.Gauges); n > 0 {
		return 0, apierrors.NewServiceUnavailable(fmt.Sprintf("no answer ended in the last %s, but %d requests are running or waiting", window, n))
	}
	return 0, nil
}

func find(name string) (figure, bool) {
	for _, f := range figures {
		if f.name == name {
			return f, true
		}
	}
	return figure{}, false
}

// sloOf returns the SLO in the labels of an HPA's metric: ttft and tpot, durations.
func sloOf(f figure, s labels.Selector) (telemetry.SLO, error) {
	var slo telemetry.SLO
	asked, _ := s.Requirements()
	if f.name != missed {
		if len(asked) > 0 {
			return slo, apierrors.NewBadRequest(fmt.Sprintf("metric %s has no labels; remove its selector (%s)", f.name, s))
		}
		return slo, nil
	}
	for _, r := range asked {
		var into *float64
		switch r.Key() {
		case "ttft":
			into = &slo.TTFT
		case "tpot":
			into = &slo.TPOT
		}
		is := r.Operator() == selection.Equals || r.Operator() == selection.DoubleEquals || r.Operator() == selection.In
		if into == nil || !is || r.Values().Len() != 1 {
			return slo, apierrors.NewBadRequest(fmt.Sprintf("metric %s: unsupported selector %q; use the labels ttft and tpot, e.g. ttft: 2s, tpot: 50ms", f.name, r.String()))
		}
		d, err := time.ParseDuration(r.Values().UnsortedList()[0])
		if err != nil || d <= 0 {
			return slo, apierrors.NewBadRequest(fmt.Sprintf("metric %s: %s: %q is not a duration above 0; use e.g. 2s or 50ms", f.name, r.Key(), r.Values().UnsortedList()[0]))
		}
		*into = d.Seconds()
	}
	if err := slo.Check(); err != nil {
		return slo, apierrors.NewBadRequest(fmt.Sprintf("metric %s: %s; set one in the selector of the metric, e.g. matchLabels: {ttft: 2s, tpot: 50ms}", f.name, strings.TrimPrefix(err.Error(), "telemetry: ")))
	}
	return slo, nil
}
