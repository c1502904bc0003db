package controller

import (
	corev1 "k8s.io/api/core/v1"

	"tangram.dev/operator/pkg/telemetry"

	api "tangram.dev/api/v1alpha2"
)

// flaps are the flapping sessions between gateways and ranks of one world in the last reading.
type flaps map[telemetry.Session]bool

// took processes a reading and returns the sessions that flap since then.
func (f flaps) took(s *telemetry.Sample) (fresh []telemetry.Session) {
	now := map[telemetry.Session]bool{}
	for _, session := range s.Flapping {
		now[session] = true
		if !f[session] {
			f[session] = true
			fresh = append(fresh, session)
		}
	}
	for session := range f {
		if !now[session] {
			delete(f, session)
		}
	}
	return fresh
}

// flapping emits an event for each session that starts to flap.
func (r *Reconciler) flapping(d *api.MoEDeployment, f flaps, s *telemetry.Sample) {
	for _, session := range f.took(s) {
		r.event(d, nil, corev1.EventTypeWarning, api.EventSessionFlaps, "Serve",
			"The connection of gateway %s to rank %s broke three times within a minute. New requests go to other ranks. The gateway's log has the reason.", session.Gateway, session.Member)
	}
}
