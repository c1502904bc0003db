package bench

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// moveKind is what determines the traffic of a copy of granules between two pieces. Its numbers are: granules of the
// target piece, first granule there, granules of the source piece, first granule there, and granules to copy. Pieces
// start at multiples of 256.
type moveKind [5]uint32

// planMoves are the copies of a plan.
type planMoves struct {
	count map[moveKind]uint64
	links [][]uint64 // bytes [from rank][to rank]; of a rank to itself: local copies
}

// kinds returns the kinds in a fixed order.
func (m *planMoves) kinds() []moveKind {
	return slices.SortedFunc(maps.Keys(m.count), func(a, b moveKind) int {
		for i := range a {
			if c := cmp.Compare(a[i], b[i]); c != 0 {
				return c
			}
		}
		return 0
	})
}

// movesOf reads the copies of a plan whose sources are ranks of the layout before each flip, as in any mode switch.
func movesOf(v *geometry.View, from *tangramv1.Layout, plan *tangramv1.Plan) (*planMoves, error) {
	ranks := len(from.Members)
	out := &planMoves{count: map[moveKind]uint64{}, links: make([][]uint64, ranks)}
	for r := range out.links {
		out.links[r] = make([]uint64, ranks)
	}
	before := from
	for _, flip := range plan.Flips {
		after, err := layout.ApplyDelta(before, flip.Delta, flip.Epoch)
		if err != nil {
			return nil, err
		}
		places := [2]*places{newPlaces(before, v), newPlaces(after, v)}
		for _, part := range flip.Parts {
			f, c := part.Fetches, part.Copies
			for i := range f.GetLayer() {
				if f.Source[i] == 0 {
					return nil, fmt.Errorf("epoch %d, rank %d: a fetch from the checkpoint", flip.Epoch, part.Rank)
				}
				run := geometry.Run{Start: f.GranuleStart[i], Count: f.GranuleCount[i]}
				if err := out.add(places, f.Source[i]-1, part.Rank, f.Layer[i], f.Expert[i], run); err != nil {
					return nil, fmt.Errorf("epoch %d: %w", flip.Epoch, err)
				}
			}
			for i := range c.GetLayer() {
				run := geometry.Run{Start: c.GranuleStart[i], Count: c.GranuleCount[i]}
				if err := out.add(places, part.Rank, part.Rank, c.Layer[i], c.Expert[i], run); err != nil {
					return nil, fmt.Errorf("epoch %d: %w", flip.Epoch, err)
				}
			}
		}
		before = after
	}
	return out, nil
}

func (m *planMoves) add(p [2]*places, from, to, layer, expert uint32, run geometry.Run) error {
	source, err := p[0].of(from, layer, expert, run)
	if err != nil {
		return err
	}
	target, err := p[1].of(to, layer, expert, run)
	if err != nil {
		return err
	}
	m.count[moveKind{target.Count, run.Start - target.Start, source.Count, run.Start - source.Start, run.Count}]++
	m.links[from][to] += uint64(run.Count) * p[0].v.Proto.GranuleBytes
	return nil
}

// places finds the pieces of a layout, by layer on demand, because a flip changes few layers.
type places struct {
	l     *tangramv1.Layout
	v     *geometry.View
	found map[[2]uint32]map[uint32]geometry.Run // [layer, rank] -> expert -> its run
}

func newPlaces(l *tangramv1.Layout, v *geometry.View) *places {
	return &places{l: l, v: v, found: map[[2]uint32]map[uint32]geometry.Run{}}
}

// of returns the run of the piece that contains these granules.
func (p *places) of(rank, layer, expert uint32, run geometry.Run) (geometry.Run, error) {
	key := [2]uint32{layer, rank}
	if p.found[key] == nil {
		runs := map[uint32]geometry.Run{}
		for _, piece := range layout.LayerPieces(p.l.Layers[layer], p.v, rank) {
			runs[piece.Expert] = piece.Run
		}
		p.found[key] = runs
	}
	held, has := p.found[key][expert]
	if !has || held.Overlap(run) != run {
		return held, fmt.Errorf("layer %d, expert %d: rank %d has granules %v, and not all of %v", layer, expert, rank, held, run)
	}
	return held, nil
}
