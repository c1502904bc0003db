// Package ranges converts the layer ranges of a MoEDeployment to those of pkg/layout, and back.
package ranges

import (
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"tangram.dev/operator/pkg/layout"

	api "tangram.dev/api/v1alpha2"
)

// OfSpec reads spec.parallelism.layers.
func OfSpec(spec []api.LayerRange) layout.Ranges {
	group := func(n *intstr.IntOrString) uint32 {
		switch {
		case n == nil:
			return 1 // the CRD's default
		case n.Type == intstr.String:
			return layout.AllRanks // the only string that the CRD accepts
		}
		return uint32(n.IntVal)
	}
	var out layout.Ranges
	for _, x := range spec {
		out = append(out, layout.Range{First: int(x.FirstLayer), Last: int(ptr.Deref(x.LastLayer, layout.ToTheEnd)),
			ExpertGroup: group(x.ExpertGroup), AttentionGroup: group(x.AttentionGroup)})
	}
	return out
}

// Status converts the ranges of an active layout, whose groups are all numbers.
func Status(ranges layout.Ranges) []api.RangeStatus {
	var out []api.RangeStatus
	for _, x := range ranges {
		out = append(out, api.RangeStatus{FirstLayer: int32(x.First), LastLayer: int32(x.Last), ExpertGroup: int32(x.ExpertGroup), AttentionGroup: int32(x.AttentionGroup)})
	}
	return out
}

// OfStatus reads status.layers.
func OfStatus(status []api.RangeStatus) layout.Ranges {
	var out layout.Ranges
	for _, x := range status {
		out = append(out, layout.Range{First: int(x.FirstLayer), Last: int(x.LastLayer), ExpertGroup: uint32(x.ExpertGroup), AttentionGroup: uint32(x.AttentionGroup)})
	}
	return out
}
