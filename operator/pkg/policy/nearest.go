package policy

import (
	"slices"

	"tangram.dev/operator/pkg/kernels"
)

const nearest = "No number of ranks meets the SLO at this load. This number comes closest. "

// first returns the first (narrowest) verdict that satisfies `is`; otherwise the narrowest, and none is true.
func first(all []verdict, is func(verdict) bool) (v verdict, none bool) {
	if i := slices.IndexFunc(all, is); i >= 0 {
		return all[i], false
	}
	return all[0], true
}

// nearestOf chooses among widths that all miss the SLO. Full steps of a wider world are longer, so the widest is not
// always the nearest. A width below the wanted one must be nearer by a margin.
func nearestOf(all []verdict, wanted kernels.Shape, margin float64) verdict {
	is := func(v verdict) bool { return v.option.Shape.Ranks == wanted.Ranks }
	left := asNear(all, sameRatio)
	best := left[0]
	if i := slices.IndexFunc(left, is); i >= 0 {
		best = left[i]
	}
	if best.option.Shape.Ranks < wanted.Ranks {
		left = asNear(all, margin)
		if i := slices.IndexFunc(left, is); i >= 0 {
			return left[i]
		}
	}
	return best
}

// sameRatio is the maximum difference of two equal ratios.
const sameRatio = 1e-3

// asNear returns the verdicts that are nearest, up to a difference: by each one's most violated condition, then by the
// next. If the whole past violates the SLO at any width, the next condition is the use of full steps.
func asNear(all []verdict, difference float64) []verdict {
	left := slices.Clone(all)
	for i := range all[0].ratios {
		most := 0.0
		for _, v := range left {
			most = max(most, v.ratios[i])
		}
		left = slices.DeleteFunc(left, func(v verdict) bool { return v.ratios[i] < most-difference })
	}
	return left
}
