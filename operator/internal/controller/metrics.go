package controller

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"tangram.dev/operator/internal/driver"

	api "tangram.dev/api/v1alpha2"
)

// Metrics of worlds, by namespace and name.
type Metrics struct {
	epoch, width, wanted *prometheus.GaugeVec
	transitions          *prometheus.CounterVec
	seconds              *prometheus.HistogramVec
	repairs              *prometheus.CounterVec
	repairSeconds        *prometheus.HistogramVec
	missed               *prometheus.CounterVec
	load                 loadMetrics
	certificates         *expiries
}

// namespaceOfMetrics begins the name of each. Those of gateways begin with tangram_gateway, those of agents with neither.
const namespaceOfMetrics = "tangram_operator"

// NewMetrics registers them.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	world := []string{"namespace", "name"}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespaceOfMetrics, Name: name, Help: help}, world)
	}
	m := &Metrics{
		epoch:  gauge("world_epoch", "Epoch of the layout in force."),
		width:  gauge("world_width", "Ranks of the layout in force."),
		wanted: gauge("world_wanted_ranks", "Ranks that the MoEDeployment asks for, or that were decided on."),
		transitions: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespaceOfMetrics, Name: "transitions_total",
			Help: "Transitions that ended, by outcome."}, append(world, "outcome")),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespaceOfMetrics, Name: "transition_seconds",
			Help: "From observing to the last retire.", Buckets: prometheus.ExponentialBuckets(0.05, 2, 16)}, world),
	}
	m.repairs = prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespaceOfMetrics, Name: "repairs_total",
		Help: "Repairs that ended, by outcome: Repaired, WorldRestarted, Failed."}, append(world, "outcome"))
	m.repairSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespaceOfMetrics, Name: "repair_seconds",
		Help: "From the start of a repair to its last retire.", Buckets: prometheus.ExponentialBuckets(0.05, 2, 12)}, world)
	m.missed = prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespaceOfMetrics, Name: "missed_members_total",
		Help: "What engines found of members for which they gave a step up, of repairs that ended, by cause and by what they were doing."},
		append(world, "cause", "doing"))
	m.load = newLoadMetrics(registry)
	m.certificates = &expiries{days: prometheus.NewDesc(namespaceOfMetrics+"_certificate_days_left", "Days until the first certificate of the world ends.", world, nil)}
	registry.MustRegister(m.certificates)
	registry.MustRegister(m.epoch, m.width, m.wanted, m.transitions, m.seconds, m.repairs, m.repairSeconds, m.missed)
	return m
}

func (m *Metrics) world(d *api.MoEDeployment) {
	m.epoch.WithLabelValues(d.Namespace, d.Name).Set(float64(d.Status.Epoch))
	m.width.WithLabelValues(d.Namespace, d.Name).Set(float64(d.Status.Ranks))
	m.wanted.WithLabelValues(d.Namespace, d.Name).Set(float64(d.DesiredReplicas()) * float64(d.Spec.RanksPerPod))
	// From 0 on, or Prometheus does not see the first one as an increase.
	for _, outcome := range []api.TransitionPhase{api.PhaseSucceeded, api.PhaseFailed, api.PhaseSuperseded, api.PhaseAborted} {
		m.transitions.WithLabelValues(d.Namespace, d.Name, string(outcome))
	}
	for _, outcome := range []string{api.EventRepaired, api.EventWorldRestarted, repairFailed} {
		m.repairs.WithLabelValues(d.Namespace, d.Name, outcome)
	}
}

// repairFailed is an outcome that has no event of its own.
const repairFailed = "Failed"

func (m *Metrics) ended(d *api.MoEDeployment, outcome api.TransitionPhase, seconds float64) {
	m.transitions.WithLabelValues(d.Namespace, d.Name, string(outcome)).Inc()
	m.seconds.WithLabelValues(d.Namespace, d.Name).Observe(seconds)
}

func (m *Metrics) repaired(d *api.MoEDeployment, record *driver.Record, err error) {
	outcome := api.EventRepaired
	switch {
	case err != nil:
		outcome = repairFailed
	case record.WorldEnded != "":
		outcome = api.EventWorldRestarted
	}
	m.repairs.WithLabelValues(d.Namespace, d.Name, outcome).Inc()
	m.repairSeconds.WithLabelValues(d.Namespace, d.Name).Observe(record.TotalSeconds)
	for _, missed := range record.Missed { // both are words of the contract, whatever an engine wrote
		m.missed.WithLabelValues(d.Namespace, d.Name, missed.Cause, missed.Doing).Inc()
	}
}

func (m *Metrics) forget(key types.NamespacedName) {
	labels := prometheus.Labels{"namespace": key.Namespace, "name": key.Name}
	m.epoch.DeletePartialMatch(labels)
	m.width.DeletePartialMatch(labels)
	m.wanted.DeletePartialMatch(labels)
	m.transitions.DeletePartialMatch(labels)
	m.seconds.DeletePartialMatch(labels)
	m.repairs.DeletePartialMatch(labels)
	m.repairSeconds.DeletePartialMatch(labels)
	m.missed.DeletePartialMatch(labels)
	m.load.forget(labels)
	m.certificates.ends.Delete(key)
}

// expiries of worlds: a gauge that falls by itself, also while nobody looks at them.
type expiries struct {
	days *prometheus.Desc
	ends sync.Map // times by key of the MoEDeployment
}

func (e *expiries) set(d *api.MoEDeployment, end time.Time) {
	e.ends.Store(types.NamespacedName{Namespace: d.Namespace, Name: d.Name}, end)
}

// Describe is of prometheus.Collector.
func (e *expiries) Describe(out chan<- *prometheus.Desc) { out <- e.days }

// Collect is of prometheus.Collector.
func (e *expiries) Collect(out chan<- prometheus.Metric) {
	e.ends.Range(func(key, end any) bool {
		k, t := key.(types.NamespacedName), end.(time.Time) //nolint:forcetypeassert // nothing else is stored
		out <- prometheus.MustNewConstMetric(e.days, prometheus.GaugeValue, time.Until(t).Hours()/24, k.Namespace, k.Name)
		return true
	})
}
