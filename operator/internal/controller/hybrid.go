package controller

import (
	"fmt"
	"slices"

	"tangram.dev/operator/internal/keeper"
	"tangram.dev/operator/internal/ranges"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"

	api "tangram.dev/api/v1alpha2"
)

// viewOf returns the geometry of the world's model; nil: no agent has reported it yet.
func viewOf(s *scene) *geometry.View {
	for _, status := range s.seen.Statuses {
		if view, err := geometry.New(status.GetGeometry()); err == nil {
			return view
		}
	}
	return nil
}

// wantedRanks is the desired number of ranks of a world.
func wantedRanks(d *api.MoEDeployment) int {
	return int(d.DesiredReplicas() * max(d.Spec.RanksPerPod, 1))
}

// misfit says why the world cannot have its spec's layout, and what to do; nil: no obstacle is known.
func misfit(d *api.MoEDeployment, s *scene) *refusal {
	if wantedMode(d) != api.ModeHybrid {
		return nil
	}
	wanted, ranks, view := ranges.OfSpec(d.DesiredLayers()), wantedRanks(d), viewOf(s)
	err := wanted.Divide(ranks)
	if view != nil {
		if _, err = wanted.On(view, ranks); err == nil {
			err = splitsHeads(wanted.Shape(int(view.Proto.Layers), ranks), s)
		}
	}
	if err == nil {
		return nil
	}
	whose := "spec.parallelism.layers"
	if d.IsAuto() {
		whose = "status.policy.layers"
	}
	text := fmt.Sprintf("%s does not fit %d ranks (%d replicas): %v.", whose, ranks, d.DesiredReplicas(), err)
	if l := s.seen.Layout; l != nil {
		text += fmt.Sprintf(" Until the spec changes, %d ranks continue to serve with layout %v.", len(l.Members), layout.RangesOf(l))
	}
	return &refusal{reason: api.ReasonLayoutDoesNotFit, message: text}
}

// splitsHeads returns an error if the shape splits a request's heads over ranks but an engine keeps them on one.
func splitsHeads(shape layout.Shape, s *scene) error {
	for _, status := range s.seen.Statuses {
		for _, rank := range status.GetRanks() {
			if !rank.GetEngine().GetAttentionDataOnly() {
				continue
			}
			for l := range uint32(len(shape.Layers)) {
				if n := shape.Layers[l].AttentionGroup; n > 1 {
					return fmt.Errorf("layer %d has attentionGroup %d, but the engine keeps all heads of a request on one rank; remove attentionGroup or set it to 1", l, n)
				}
			}
		}
	}
	return nil
}

// want sets the desired mode. In mode Hybrid another number of ranks, as when a pod leaves before its replacement is
// ready, gets the layout as far as it fits. A world that cannot have its spec's layout keeps its own: lost pods are not
// replaced, as with spec.suspend, but a leaving pod leaves by a transition.
func want(k *keeper.Wanted, d *api.MoEDeployment, s *scene) error {
	mode, err := layout.ParseMode(string(wantedMode(d)))
	if err != nil {
		return err
	}
	k.Pods, k.Shape = int(d.DesiredReplicas()), layout.Shape{Mode: mode}
	if mode != layout.Hybrid {
		return nil
	}
	view, spread, wanted := viewOf(s), ranges.OfSpec(d.DesiredLayers()), wantedRanks(d)
	if s.misfit = misfit(d, s); s.misfit != nil {
		if s.seen.Layout == nil { // start nothing, and create no pod for it
			k.Pods, k.Standby, k.Held = min(k.Pods, len(s.pods)), 0, true
			return nil
		}
		in := layoutPods(s.seen.Layout)
		slices.Sort(in)
		k.Pods = len(slices.Compact(in))
		spread, wanted = layout.RangesOf(s.seen.Layout), 0
	}
	if view == nil { // no agent answers: start nothing
		k.Held = true
		return nil
	}
	k.ShapeOn = func(ranks int) layout.Shape {
		if ranks == wanted {
			return spread.Shape(int(view.Proto.Layers), ranks)
		}
		return spread.Fitted(view, ranks)
	}
	return nil
}

// hybrid says whether an active layout matches the spec of a world in mode Hybrid.
func hybrid(d *api.MoEDeployment, l *tangramv1.Layout) bool {
	return wantedMode(d) == api.ModeHybrid && layout.Follows(l, ranges.OfSpec(d.DesiredLayers()).Shape(len(l.GetLayers()), len(l.GetMembers())))
}

// inWords returns a mode in words, with the layout if it is Hybrid.
func inWords(mode api.Mode, spread layout.Ranges) string {
	if mode != api.ModeHybrid {
		return string(mode)
	}
	return fmt.Sprintf("%s (%v)", mode, spread)
}
