package controller

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"tangram.dev/operator/internal/balance"

	api "tangram.dev/api/v1alpha2"
)

// loadMetrics are the metrics of worlds whose experts follow the load, by namespace and name.
type loadMetrics struct {
	balancedness, layer, tokens *prometheus.GaugeVec
	rebalances, moves           *prometheus.CounterVec
}

func newLoadMetrics(registry prometheus.Registerer) loadMetrics {
	world := []string{"namespace", "name"}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespaceOfMetrics, Name: name, Help: help}, append(world, labels...))
	}
	m := loadMetrics{
		balancedness: gauge("world_balancedness",
			"Sum of the mean rank loads of all layers over the sum of the largest, in the last interval; 1 is best."),
		layer: gauge("layer_balancedness",
			"Mean rank load over the largest in the last interval, by layer of the model; 1 is best.", "layer"),
		tokens: gauge("rank_expert_tokens",
			"Tokens routed to the experts of a rank in the last interval, over all layers.", "rank"),
		rebalances: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespaceOfMetrics, Name: "rebalances_total",
			Help: "Rebalances that ended, by outcome: Rebalanced or Failed."}, append(world, "outcome")),
		moves: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespaceOfMetrics, Name: "moved_experts_total",
			Help: "Experts that rebalances moved to a rank, over all layers."}, world),
	}
	registry.MustRegister(m.balancedness, m.layer, m.tokens, m.rebalances, m.moves)
	return m
}

func (m *loadMetrics) forget(labels prometheus.Labels) {
	for _, v := range []*prometheus.GaugeVec{m.balancedness, m.layer, m.tokens} {
		v.DeletePartialMatch(labels)
	}
	m.rebalances.DeletePartialMatch(labels)
	m.moves.DeletePartialMatch(labels)
}

// balanced records a window; layers are numbered as in the model.
func (m *Metrics) balanced(d *api.MoEDeployment, report *balance.Report, layers []uint32) {
	if report == nil || len(report.Balance.Layers) != len(layers) {
		return // no complete window, or the model is unknown
	}
	world := prometheus.Labels{"namespace": d.Namespace, "name": d.Name}
	m.load.balancedness.With(world).Set(report.Balance.Aggregate)
	m.load.tokens.DeletePartialMatch(world) // ranks may be fewer, and in mode Hybrid layers may differ
	m.load.layer.DeletePartialMatch(world)
	ranks := map[int]float64{}
	for o, number := range layers {
		m.load.layer.WithLabelValues(d.Namespace, d.Name, strconv.Itoa(int(number))).Set(report.Balance.Layers[o])
		for rank, tokens := range report.RankLoads[o] {
			ranks[rank] += tokens
		}
	}
	for rank, tokens := range ranks {
		m.load.tokens.WithLabelValues(d.Namespace, d.Name, strconv.Itoa(rank)).Set(tokens)
	}
}

// unbalanced removes the metrics of a world whose experts do not follow the load.
func (m *Metrics) unbalanced(d *api.MoEDeployment) {
	m.load.balancedness.DeleteLabelValues(d.Namespace, d.Name)
	world := prometheus.Labels{"namespace": d.Namespace, "name": d.Name}
	m.load.layer.DeletePartialMatch(world)
	m.load.tokens.DeletePartialMatch(world)
}

func (m *Metrics) rebalanced(d *api.MoEDeployment, moves int, err error) {
	outcome := api.EventRebalanced
	if err != nil {
		outcome = "Failed"
	} else {
		m.load.moves.WithLabelValues(d.Namespace, d.Name).Add(float64(moves))
	}
	m.load.rebalances.WithLabelValues(d.Namespace, d.Name, outcome).Inc()
}
