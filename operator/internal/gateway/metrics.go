package gateway

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of a gateway.
type Metrics struct {
	requests, replays                            *prometheus.CounterVec
	tokens, duplicates, conflicts, lost, untaken prometheus.Counter
	cached                                       prometheus.Counter
	resends                                      prometheus.Counter
	sessions                                     *prometheus.GaugeVec
	breaks                                       *prometheus.CounterVec
	epoch                                        prometheus.Gauge
	firstToken, betweenTokens                    prometheus.Histogram

	// Of this gateway's clients, under vLLM's names: they mean what they mean there, and add up over gateways.
	prompts, generated  prometheus.Counter
	ttft, tpot, latency prometheus.Histogram
}

// NewMetrics registers them, of a gateway to a model of this name.
func NewMetrics(r prometheus.Registerer, model string) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "tangram_gateway", Name: name, Help: help})
	}
	buckets := prometheus.ExponentialBuckets(0.001, 2, 16)
	m := &Metrics{
		requests:   prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "tangram_gateway", Name: "requests_total", Help: "Requests by HTTP status; 499: the client left. A stream that broke counts as 500."}, []string{"code"}),
		tokens:     counter("tokens_total", "Tokens delivered to clients."),
		duplicates: counter("duplicate_tokens_total", "Tokens dropped because their position was delivered already."),
		conflicts:  counter("conflicting_tokens_total", "Tokens that differ from the one delivered for their position. Always 0, or something is broken."),
		lost:       counter("lost_requests_total", "Accepted requests that ended without their last token."),
		untaken:    counter("untaken_requests_total", "Of the replays those of requests without a token so far that no member of a new epoch has: they were on their way to a rank that left, or it died."),
		cached:     counter("cached_prompt_tokens_total", "Tokens at the beginning of prompts that the rank chosen for them had cached, as it had told."),
		replays: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "tangram_gateway", Name: "replays_total",
			Help: "Requests submitted again with their tokens so far, by cause: no member has them, their session is cut, the engine gave them up, the world was restarted."}, []string{"cause"}),
		resends: counter("resends_total", "Requests sent to the same rank again, because the connection broke before the rank had answered."),
		breaks: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "tangram_gateway", Name: "session_breaks_total",
			Help: "Connections to this frontend that had come up and ended."}, []string{"frontend"}),
		sessions: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "tangram_gateway", Name: "session_up", Help: "1 while the session to this frontend is up."}, []string{"frontend"}),
		epoch:    prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "tangram_gateway", Name: "epoch", Help: "Highest epoch heard of."}),
		firstToken: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "tangram_gateway", Name: "first_token_seconds",
			Help: "From request to first token.", Buckets: buckets}),
		betweenTokens: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "tangram_gateway", Name: "between_tokens_seconds",
			Help: "Between two tokens of a request.", Buckets: buckets}),
	}
	named := prometheus.Labels{"model_name": model}
	client := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "vllm:" + name, Help: help, Buckets: buckets, ConstLabels: named,
			NativeHistogramBucketFactor: math.Exp2(1. / 8), NativeHistogramMaxBucketNumber: 160})
	}
	m.prompts = prometheus.NewCounter(prometheus.CounterOpts{Name: "vllm:prompt_tokens_total", Help: "Tokens of the prompts whose answers have begun.", ConstLabels: named})
	m.generated = prometheus.NewCounter(prometheus.CounterOpts{Name: "vllm:generation_tokens_total", Help: "Tokens delivered to clients.", ConstLabels: named})
	m.ttft = client("time_to_first_token_seconds", "From request to first token, by the clients' clock.")
	m.tpot = client("request_time_per_output_token_seconds", "Between two tokens, in the mean of an answer.")
	m.latency = client("e2e_request_latency_seconds", "From request to last token.")
	// There from the start, so that the first one shows in a rate.
	for _, code := range []string{"200", "400", "429", "500", "503"} {
		m.requests.WithLabelValues(code)
	}
	for _, cause := range []string{causeRoster, causeCut, causeCancelled, causeRestart} {
		m.replays.WithLabelValues(cause)
	}
	r.MustRegister(m.resends, m.breaks, m.requests, m.replays, m.untaken, m.cached, m.tokens, m.duplicates, m.conflicts, m.lost, m.sessions, m.epoch, m.firstToken, m.betweenTokens, m.prompts, m.generated, m.ttft, m.tpot, m.latency)
	return m
}
