// Package buildinfo exports the version of a program as a metric.
package buildinfo

import (
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
)

// Metric is NAMESPACE_build_info with the labels version and revision; its value is 1.
func Metric(namespace string) prometheus.Collector {
	labels := prometheus.Labels{"version": "unknown", "revision": "unknown"}
	if info, ok := debug.ReadBuildInfo(); ok {
		if info.Main.Version != "" {
			labels["version"] = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				labels["revision"] = s.Value
			}
		}
	}
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Name: "build_info", ConstLabels: labels,
		Help: "The labels show the version and the revision of the program."}, func() float64 { return 1 })
}
