package controller

import (
	"slices"

	"tangram.dev/operator/internal/world"

	api "tangram.dev/api/v1alpha2"
)

// aborted returns the LayoutTransition that the user aborted. No transition starts while its annotation exists and the
// spec is unchanged since it started. nil: none.
func aborted(d *api.MoEDeployment, transitions []api.LayoutTransition) *api.LayoutTransition {
	name := d.Annotations[api.AbortAnnotation]
	i := slices.IndexFunc(transitions, func(t api.LayoutTransition) bool { return t.Name == name })
	if name == "" || i < 0 || transitions[i].Spec.MoEDeploymentGeneration != d.Generation || transitions[i].Spec.Kind == api.KindRepair {
		return nil
	}
	return &transitions[i]
}

// hold says whether transitions are held back now, and ends the running one if the user aborts it. running is the name
// of its LayoutTransition: another open one was left by an operator that died.
func (s *scene) hold(d *api.MoEDeployment, w *world.World, running string) bool {
	s.aborted = aborted(d, s.transitions)
	if s.ending = s.aborted != nil && s.aborted.Name == running && s.seen.Running != nil; s.ending {
		w.Abort()
	}
	return d.Spec.Suspend || s.aborted != nil
}
