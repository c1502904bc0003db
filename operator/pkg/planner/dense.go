package planner

import (
	"cmp"

	"tangram.dev/operator/pkg/geometry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// denseCopy is a copy of a part of the dense weights at a rank; hands counts the transfers since a rank held or read
// it.
type denseCopy struct{ rank, hands int }

// bringDense gives every rank that lacks the dense weights a source for each part: the nearest rank that has it by
// then. Of equals, it takes one that has sent all parts fewest times, then the one with the fewest transfers. So pieces
// with few holders or one reader spread as a tree, and no rank sends much more than all parts once. If no rank holds
// the dense weights, ranks take turns to read each part from the checkpoint.
func (c *chain) bringDense(b *parts) {
	var lack []int
	var held []denseCopy
	alone := c.in.Options.FromCheckpoint // every rank reads all parts itself
	for r, part := range b.parts {
		if c.dense[r] {
			held = append(held, denseCopy{rank: r})
		} else if part != nil {
			lack = append(lack, r)
			part.Dense = &tangramv1.DenseFetch{SourceByPart: make([]uint32, geometry.DenseParts)}
		}
	}
	if len(lack) == 0 {
		return
	}
	var copies [geometry.DenseParts][]denseCopy
	for i := range copies {
		copies[i] = append(make([]denseCopy, 0, len(held)+len(lack)), held...)
	}
	sent := make([]int, len(c.members)) // parts
	for turn := range lack {
		for i, have := range copies {
			r := lack[(i+turn)%len(lack)] // parts first go to different ranks
			next := denseCopy{rank: r}
			if s := c.denseSource(r, have, sent); s != nil && !alone {
				sent[s.rank]++
				next.hands = s.hands + 1
				b.parts[r].Dense.SourceByPart[i] = uint32(s.rank) + 1
			}
			copies[i] = append(have, next)
		}
	}
	for _, r := range lack {
		c.dense[r] = true
	}
	bytes := c.v.Proto.DenseBytes * uint64(len(lack))
	b.cost.DenseBytes += bytes
	b.cost.DenseBoundBytes += bytes
	switch {
	case alone:
		b.cost.CheckpointBytes += bytes
	case len(held) == 0:
		b.cost.CheckpointBytes += c.v.Proto.DenseBytes
	}
}

// denseSource returns the source of a part for rank r among those that have it; nil: none has.
func (c *chain) denseSource(r int, have []denseCopy, sent []int) *denseCopy {
	near := c.nears[r*len(c.members):]
	var best *denseCopy
	for i := range have {
		s := &have[i]
		if best == nil || cmp.Or(cmp.Compare(near[s.rank], near[best.rank]),
			cmp.Compare(sent[s.rank]/geometry.DenseParts, sent[best.rank]/geometry.DenseParts),
			cmp.Compare(s.hands, best.hands), cmp.Compare(sent[s.rank], sent[best.rank])) < 0 {
			best = s
		}
	}
	return best
}
