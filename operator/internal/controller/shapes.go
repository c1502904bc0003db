package controller

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/intstr"

	"tangram.dev/operator/internal/ranges"
	"tangram.dev/operator/internal/world"
	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"

	api "tangram.dev/api/v1alpha2"
)

// shapeOf returns a layout's shape for policies; the zero Shape if layers differ.
func shapeOf(l *tangramv1.Layout) kernels.Shape {
	ranks := len(l.GetMembers())
	switch {
	case layout.Is(l, layout.Expert):
		return kernels.Expert(ranks)
	case layout.Is(l, layout.Tensor) && l.Layers[0].AttentionGroupSize == 1:
		return kernels.TensorByData(ranks)
	case layout.Is(l, layout.Tensor):
		return kernels.Tensor(ranks)
	}
	all := layout.RangesOf(l)
	if len(all) != 1 {
		return kernels.Shape{}
	}
	return kernels.Shape{Ranks: ranks, ExpertGroup: int(all[0].ExpertGroup), AttentionGroup: int(all[0].AttentionGroup)}
}

// attentionByData says whether the engines keep all heads of a request on one rank. Not known: no engine is attached.
func attentionByData(seen *world.Snapshot) (byData, known bool) {
	for _, status := range seen.Statuses {
		for _, rank := range status.GetRanks() {
			known = known || rank.GetEngine() != nil
			byData = byData || rank.GetEngine().GetAttentionDataOnly()
		}
	}
	return byData, known
}

// shapes converts between modes and shapes. byData: engines always keep all heads of a request on one rank.
type shapes struct {
	d      *api.MoEDeployment
	byData bool
}

// tensor is the kind of mode TensorParallel.
func (x shapes) tensor() kernels.Kind {
	if x.byData {
		return kernels.TensorByData(2).Kind()
	}
	return kindTensor
}

// mode returns the mode of a shape that a policy chose. One rank has no mode and counts as ExpertParallel.
func (x shapes) mode(s kernels.Shape) api.Mode {
	switch {
	case s.Ranks < 2 || s == kernels.Expert(s.Ranks):
		return api.ModeExpert
	case s == x.tensor().On(s.Ranks):
		return api.ModeTensor
	}
	return api.ModeHybrid
}

// Kinds of the modes, for engines that split attention.
var (
	kindExpert = kernels.Expert(2).Kind()
	kindTensor = kernels.Tensor(2).Kind()
)

// kindOfGroups converts groups of a spec.
func kindOfGroups(experts, attention *intstr.IntOrString) kernels.Kind {
	one := ranges.OfSpec([]api.LayerRange{{Groups: api.Groups{ExpertGroup: experts, AttentionGroup: attention}}})[0]
	return kernels.Kind{ExpertGroup: int(one.ExpertGroup), AttentionGroup: int(one.AttentionGroup)} // AllRanks is 0 in both
}

// hybridsOf returns the hybrids of a spec, without those that equal a mode.
func hybridsOf(d *api.MoEDeployment) []kernels.Kind {
	var out []kernels.Kind
	if d.Spec.Parallelism.Auto == nil {
		return nil
	}
	for _, g := range d.Spec.Parallelism.Auto.Hybrids {
		if k := kindOfGroups(g.ExpertGroup, g.AttentionGroup); k != kindExpert && k != kindTensor && !slices.Contains(out, k) {
			out = append(out, k)
		}
	}
	return out
}

// kindOf returns a shape's kind, as the spec writes it if it is one of its hybrids.
func (x shapes) kindOf(s kernels.Shape) kernels.Kind {
	for _, k := range hybridsOf(x.d) {
		if k.On(s.Ranks) == s {
			return k
		}
	}
	return s.Kind()
}

// wanted is the desired kind of a world in mode ExpertParallel, TensorParallel or Auto.
func (x shapes) wanted() kernels.Kind {
	switch wantedMode(x.d) {
	case api.ModeTensor:
		return x.tensor()
	case api.ModeHybrid:
		if l := x.d.DesiredLayers(); len(l) == 1 {
			return kindOfGroups(l[0].ExpertGroup, l[0].AttentionGroup)
		}
	}
	return kindExpert
}

// allowed says whether mode Auto may choose a shape.
func (x shapes) allowed(s kernels.Shape) bool {
	return s.Ranks > 0 && (x.mode(s) != api.ModeHybrid || slices.ContainsFunc(hybridsOf(x.d), func(k kernels.Kind) bool { return k.On(s.Ranks) == s }))
}

// become writes a shape into a status as the desired one.
func (x shapes) become(st *api.PolicyStatus, s kernels.Shape) {
	st.Mode, st.Layers = x.mode(s), nil
	if st.Mode != api.ModeHybrid {
		return
	}
	group := func(n int) *intstr.IntOrString {
		out := intstr.FromInt32(int32(n))
		if n == kernels.AllRanks {
			out = intstr.FromString(api.AllRanks)
		}
		return &out
	}
	k := x.kindOf(s)
	st.Layers = []api.LayerRange{{Groups: api.Groups{ExpertGroup: group(k.ExpertGroup), AttentionGroup: group(k.AttentionGroup)}}}
}

// spreadOf gives all layers the same groups.
func spreadOf(k kernels.Kind) layout.Ranges {
	return layout.Ranges{{First: 0, Last: layout.ToTheEnd, ExpertGroup: uint32(k.ExpertGroup), AttentionGroup: uint32(k.AttentionGroup)}}
}

// short is the layout of a hybrid in words; empty for a mode.
func (x shapes) short(s kernels.Shape) string {
	if x.mode(s) != api.ModeHybrid {
		return ""
	}
	return spreadOf(x.kindOf(s)).String()
}
