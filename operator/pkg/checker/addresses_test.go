package checker_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/checker"
	"tangram.dev/operator/pkg/layout"
)

// The checker has its own address rule, from the text of architecture, section 8. It and pkg/layout place every piece
// at the same byte.
func TestPiecesOfMatchesLayoutPackage(t *testing.T) {
	for _, tail := range []uint64{0, 40} {
		w := &world{v: view(t, tail)}
		pairs := layout.Shape{Mode: layout.Expert, Layers: map[uint32]layout.LayerShape{1: {ExpertGroup: 2}, 2: {ExpertGroup: 3}}}
		for _, step := range []func(){
			func() { w.to(t, 4, expertShape) }, func() { w.to(t, 3, expertShape) }, func() { w.to(t, 4, expertShape) }, // slots stay empty
			func() { w.to(t, 4, tensorShape) }, func() { w.repair(t, 2) }, func() { w.to(t, 6, pairs) }, func() { w.repair(t, 1, 4) },
		} {
			step()
			for rank := range w.now.Members {
				require.Equal(t, layout.Pieces(w.now, w.v, uint32(rank)), checker.PiecesOf(w.now, w.v, uint32(rank)), "rank %d", rank)
			}
		}
	}
}
