package controller

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"tangram.dev/operator/internal/buildinfo"
	"tangram.dev/operator/internal/driver"

	api "tangram.dev/api/v1alpha2"
)

// Metrics of worlds, by namespace and name.
type Metrics struct {
	epoch, ranks, desired, conditions *prometheus.GaugeVec
	transitions                       *prometheus.CounterVec
	seconds                           *prometheus.HistogramVec
	repairs                           *prometheus.CounterVec
	repairSeconds                     *prometheus.HistogramVec
	unresponsive                      *prometheus.CounterVec
	certificates                      *prometheus.GaugeVec
	load                              loadMetrics
	world                             *worldMetrics
}

// namespaceOfMetrics is the prefix of all names. Gateways use tangram_gateway, agents tangram_agent.
const namespaceOfMetrics = "tangram_operator"

// NewMetrics creates and registers the metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	world := []string{"namespace", "name"}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespaceOfMetrics, Name: name, Help: help}, append(world, labels...))
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespaceOfMetrics, Name: name, Help: help}, append(world, labels...))
	}
	histogram := func(name, help string, buckets int) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespaceOfMetrics, Name: name, Help: help,
			Buckets: prometheus.ExponentialBuckets(0.05, 2, buckets)}, world)
	}
	m := &Metrics{
		epoch:      gauge("world_epoch", "Epoch of the active layout."),
		ranks:      gauge("world_ranks", "Number of ranks of the active layout."),
		desired:    gauge("world_desired_ranks", "Number of ranks that the MoEDeployment or its policy asks for."),
		conditions: gauge("world_condition", "The gauge is 1 for the current status of the condition, and 0 for the others.", "condition", "status"),
		transitions: counter("transitions_total", "Transitions that ended, by outcome.",
			"outcome"),
		seconds: histogram("transition_duration_seconds", "Time from the start of a transition to its last retire.", 16),
		repairs: counter("repairs_total", "Repairs that ended, by outcome: Repaired, WorldRestarted or Failed.",
			"outcome"),
		repairSeconds: histogram("repair_duration_seconds", "Time from the start of a repair to its last retire.", 12),
		unresponsive: counter("unresponsive_members_total",
			"Members for which engines abandoned a step before a repair, by cause and activity.", "cause", "doing"),
		certificates: gauge("certificate_expiration_timestamp_seconds",
			"Unix time at which the first certificate of the world expires."),
	}
	m.load = newLoadMetrics(registry)
	m.world = newWorldMetrics()
	registry.MustRegister(buildinfo.Metric(namespaceOfMetrics), m.world, m.certificates)
	registry.MustRegister(m.epoch, m.ranks, m.desired, m.conditions, m.transitions, m.seconds, m.repairs, m.repairSeconds, m.unresponsive)
	return m
}

// exportedConditions are present in every MoEDeployment.
var exportedConditions = []string{
	api.ConditionAvailable, api.ConditionProgressing, api.ConditionDegraded, api.ConditionReady, api.ConditionRepairReady,
}

func (m *Metrics) status(d *api.MoEDeployment) {
	m.epoch.WithLabelValues(d.Namespace, d.Name).Set(float64(d.Status.Epoch))
	m.ranks.WithLabelValues(d.Namespace, d.Name).Set(float64(d.Status.Ranks))
	m.desired.WithLabelValues(d.Namespace, d.Name).Set(float64(d.DesiredReplicas()) * float64(d.Spec.RanksPerPod))
	for _, condition := range exportedConditions {
		current := metav1.ConditionUnknown
		if c := apimeta.FindStatusCondition(d.Status.Conditions, condition); c != nil {
			current = c.Status
		}
		for _, status := range []metav1.ConditionStatus{metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown} {
			is := 0.
			if status == current {
				is = 1
			}
			m.conditions.WithLabelValues(d.Namespace, d.Name, condition, string(status)).Set(is)
		}
	}
	// Start at 0; otherwise Prometheus does not count the first one as an increase.
	for _, outcome := range []api.TransitionPhase{api.PhaseSucceeded, api.PhaseFailed, api.PhaseSuperseded, api.PhaseAborted} {
		m.transitions.WithLabelValues(d.Namespace, d.Name, string(outcome))
	}
	for _, outcome := range []string{api.EventRepaired, api.EventWorldRestarted, repairFailed} {
		m.repairs.WithLabelValues(d.Namespace, d.Name, outcome)
	}
}

// certificate records when the first certificate of a world expires.
func (m *Metrics) certificate(d *api.MoEDeployment, expires time.Time) {
	m.certificates.WithLabelValues(d.Namespace, d.Name).Set(float64(expires.Unix()))
}

// repairFailed is an outcome without an event of that name.
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
	for _, missed := range record.Missed { // both come from fixed sets, whatever an engine sent
		m.unresponsive.WithLabelValues(d.Namespace, d.Name, missed.Cause, missed.Doing).Inc()
	}
}

func (m *Metrics) forget(key types.NamespacedName) {
	labels := prometheus.Labels{"namespace": key.Namespace, "name": key.Name}
	for _, v := range []*prometheus.GaugeVec{m.epoch, m.ranks, m.desired, m.conditions, m.certificates} {
		v.DeletePartialMatch(labels)
	}
	for _, v := range []*prometheus.CounterVec{m.transitions, m.repairs, m.unresponsive} {
		v.DeletePartialMatch(labels)
	}
	m.seconds.DeletePartialMatch(labels)
	m.repairSeconds.DeletePartialMatch(labels)
	m.load.forget(labels)
	m.world.readers.Delete(key)
}
