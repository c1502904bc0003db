package policy

import (
	"slices"

	"tangram.dev/operator/pkg/kernels"
)

const nearest = "No number of ranks meets the SLO at this load. This number comes closest. "

// first verdict, the narrowest, that is so; or the narrowest, and that none is.
func first(all []verdict, is func(verdict) bool) (v verdict, none bool) {
	if i := slices.IndexFunc(all, is); i >= 0 {
		return all[i], false
	}
	return all[0], true
}

// nearestOf widths of which none holds the SLO: a wider world's full steps are longer, so that the widest need not be the one that comes nearest. A narrower one
// than what is wanted has to be nearer by a margin.
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

// sameRatio are two ratios that differ by no more.
const sameRatio = 1e-3

// asNear as any but for a difference: by the condition that each misses by most; of those that are as near by that the next condition counts. Where all of the
// past is lost with any width, that is how full steps would be.
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
