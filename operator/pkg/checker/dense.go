package checker

import (
	"fmt"
	"slices"

	"tangram.dev/operator/pkg/geometry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

func (p *player) densePart(numbering *tangramv1.Layout, part *tangramv1.RankPart, after bool, cost *tangramv1.Cost) error {
	sources := part.GetDense().GetSourceByPart()
	if !after || p.dense[part.Member] {
		if len(sources) != 0 {
			return fmt.Errorf("brings dense weights that it holds or does not need")
		}
		return nil
	}
	if len(sources) != geometry.DenseParts {
		return fmt.Errorf("dense weights in %d parts", len(sources))
	}
	for _, source := range sources {
		if int(source) > len(numbering.Members) || source == part.Rank+1 {
			return fmt.Errorf("dense weights from source %d of %d ranks", source, len(numbering.Members))
		}
	}
	cost.DenseBytes += p.Geometry.Proto.DenseBytes
	return nil
}

// denseWays: each part of the dense weights comes from a rank that held it before, perhaps through other receiving
// ranks. If no rank held it, one rank reads it from the checkpoint.
func (p *player) denseWays(flip *tangramv1.Flip, numbering *tangramv1.Layout, cost *tangramv1.Cost) error {
	held := slices.ContainsFunc(numbering.Members, func(m *tangramv1.Member) bool { return p.dense[m.Id] })
	from := map[uint32][]uint32{} // sources by rank
	for _, part := range flip.Parts {
		if sources := part.GetDense().GetSourceByPart(); len(sources) > 0 {
			from[part.Rank] = sources
		}
	}
	for i := range geometry.DenseParts {
		reader := -1
		for rank := range numbering.Members {
			sources, brings := from[uint32(rank)]
			switch {
			case !brings:
			case sources[i] != 0:
				if err := p.denseWay(from, numbering, uint32(rank), i); err != nil {
					return err
				}
			case held:
				return fmt.Errorf("rank %d reads part %d of the dense weights from the checkpoint, which others hold", rank, i)
			case reader >= 0:
				return fmt.Errorf("ranks %d and %d both read part %d of the dense weights from the checkpoint", reader, rank, i)
			default:
				reader = rank
			}
		}
	}
	if len(from) > 0 && !held {
		cost.CheckpointBytes += p.Geometry.Proto.DenseBytes
	}
	return nil
}

// denseWay follows part i from a rank back to its source.
func (p *player) denseWay(from map[uint32][]uint32, numbering *tangramv1.Layout, rank uint32, i int) error {
	at := rank
	for range numbering.Members {
		sources, brings := from[at]
		if !brings && !p.dense[numbering.Members[at].Id] {
			return fmt.Errorf("part %d of the dense weights from rank %d, which lacks them", i, at)
		}
		if !brings || sources[i] == 0 {
			return nil
		}
		at = sources[i] - 1
	}
	return fmt.Errorf("rank %d pulls part %d of the dense weights along a way that ends nowhere", rank, i)
}
