package gateway

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"

	"tangram.dev/operator/internal/buildinfo"
)

// namespaceOfMetrics is the prefix of all metrics that vLLM does not have.
const namespaceOfMetrics = "tangram_gateway"

// Metrics of a gateway and its own clients; they add up over gateways. The operator exports those of a whole world.
type Metrics struct {
	requests, replays                                      *prometheus.CounterVec
	duplicates, conflicts, lost, orphaned, cached, resends prometheus.Counter
	sessions                                               *prometheus.GaugeVec
	breaks                                                 *prometheus.CounterVec
	epoch                                                  prometheus.Gauge

	// vLLM's names, with the same meaning.
	prompts, generated             prometheus.Counter
	ttft, between, perToken, total prometheus.Histogram
}

// NewMetrics registers the metrics, for a model of this name.
func NewMetrics(r prometheus.Registerer, model string) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespaceOfMetrics, Name: name, Help: help})
	}
	counters := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespaceOfMetrics, Name: name, Help: help}, []string{label})
	}
	m := &Metrics{
		requests: counters("requests_total", "Requests by HTTP status: 499 if the client left, 500 if a stream broke.", "code"),
		duplicates: counter("duplicate_tokens_total",
			"Tokens that the gateway dropped because it had delivered their position before."),
		conflicts: counter("conflicting_tokens_total",
			"Tokens that differ from the token delivered for their position; any value above 0 is an error."),
		lost: counter("lost_requests_total", "Accepted requests that ended without their last token."),
		orphaned: counter("orphaned_requests_total",
			"Replays of requests without a token that no member of a new epoch had: their rank had left or died."),
		cached: counter("cached_prompt_tokens_total",
			"Prompt tokens that the chosen rank had cached, according to its last report."),
		replays: counters("replays_total", "Requests that the gateway submitted again with their tokens so far, by cause.", "cause"),
		resends: counter("resends_total",
			"Requests that the gateway sent again to the same rank, because the connection broke before an answer."),
		breaks: counters("session_breaks_total", "Connections to the frontend that were established and ended.", "frontend"),
		sessions: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespaceOfMetrics, Name: "session_up",
			Help: "The gauge is 1 while the session to the frontend is up."}, []string{"frontend"}),
		epoch: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespaceOfMetrics, Name: "epoch",
			Help: "Highest epoch that the gateway has received."}),
	}
	named := prometheus.Labels{"model_name": model}
	histogram := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "vllm:" + name, Help: help, ConstLabels: named,
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16), NativeHistogramBucketFactor: math.Exp2(1. / 8), NativeHistogramMaxBucketNumber: 160})
	}
	m.prompts = prometheus.NewCounter(prometheus.CounterOpts{Name: "vllm:prompt_tokens_total", ConstLabels: named,
		Help: "Prompt tokens of the requests whose answers have begun."})
	m.generated = prometheus.NewCounter(prometheus.CounterOpts{Name: "vllm:generation_tokens_total", ConstLabels: named,
		Help: "Tokens that the gateway delivered to its clients."})
	m.ttft = histogram("time_to_first_token_seconds", "Time from a request to its first token.")
	m.between = histogram("inter_token_latency_seconds", "Time between two consecutive tokens of a request.")
	m.perToken = histogram("request_time_per_output_token_seconds", "Mean time between two tokens of each answer.")
	m.total = histogram("e2e_request_latency_seconds", "Time from a request to its last token.")
	// Initialized, so that the first increase shows in a rate.
	for _, code := range []string{"200", "400", "429", "500", "503"} {
		m.requests.WithLabelValues(code)
	}
	for _, cause := range []string{causeRoster, causeCut, causeCancelled, causeRestart} {
		m.replays.WithLabelValues(cause)
	}
	r.MustRegister(buildinfo.Metric(namespaceOfMetrics))
	r.MustRegister(m.requests, m.replays, m.duplicates, m.conflicts, m.lost, m.orphaned, m.cached, m.resends, m.sessions, m.breaks, m.epoch)
	r.MustRegister(m.prompts, m.generated, m.ttft, m.between, m.perToken, m.total)
	return m
}

// requestMetrics counts the requests of a pool at each scrape.
type requestMetrics struct {
	pool             *Pool
	running, waiting *prometheus.Desc
}

// NewRequestMetrics counts the requests of this gateway's own clients, so the metrics can be summed over gateways.
func NewRequestMetrics(p *Pool, model string) prometheus.Collector {
	named := prometheus.Labels{"model_name": model}
	return &requestMetrics{pool: p,
		running: prometheus.NewDesc("vllm:num_requests_running",
			"Requests of the gateway's clients that a rank has accepted.", nil, named),
		waiting: prometheus.NewDesc("vllm:num_requests_waiting",
			"Requests of the gateway's clients that no rank has accepted yet.", nil, named)}
}

// Describe implements prometheus.Collector.
func (m *requestMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- m.running
	out <- m.waiting
}

// Collect implements prometheus.Collector.
func (m *requestMetrics) Collect(out chan<- prometheus.Metric) {
	running, waiting := m.pool.underway()
	out <- prometheus.MustNewConstMetric(m.running, prometheus.GaugeValue, float64(running))
	out <- prometheus.MustNewConstMetric(m.waiting, prometheus.GaugeValue, float64(waiting))
}

// underway counts the unfinished requests. A rank accepts a request without a message. The first sign is its first
// token, or the roster of a flip.
func (p *Pool) underway() (running, waiting int) {
	p.requests.each(func(r *request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		switch {
		case r.done:
		case r.owner != "" && r.answered && r.refusal == nil:
			running++
		default:
			waiting++
		}
	})
	return running, waiting
}
