package controller

import (
	"slices"

	"tangram.dev/operator/internal/world"

	api "tangram.dev/api/v1alpha2"
)

// aborted gives the LayoutTransition that the user aborted: no transition is begun while its annotation stands and the
// spec is the one that asked for it. nil: none.
func aborted(d *api.MoEDeployment, transitions []api.LayoutTransition) *api.LayoutTransition {
	name := d.Annotations[api.AbortAnnotation]
	i := slices.IndexFunc(transitions, func(t api.LayoutTransition) bool { return t.Name == name })
	if name == "" || i < 0 || transitions[i].Spec.MoEDeploymentGeneration != d.Generation || transitions[i].Spec.Kind == api.KindRepair {
		return nil
	}
	return &transitions[i]
}

// hold says whether no transition may be begun now, and ends one that the user aborts. running is the name of the LayoutTransition of the one
// that runs: another open one was left by an operator that died.
func (s *scene) hold(d *api.MoEDeployment, w *world.World, running string) bool {
	s.aborted = aborted(d, s.transitions)
	if s.ending = s.aborted != nil && s.aborted.Name == running && s.seen.Running != nil; s.ending {
		w.Abort()
	}
	return d.Spec.Suspend || s.aborted != nil
}
