package planner_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/pkg/checker"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

var (
	expertShape = layout.Shape{Mode: layout.Expert}
	tensorShape = layout.Shape{Mode: layout.Tensor}
)

func TestPlanErrorsIncludeNumbers(t *testing.T) {
	g := shape(5, 6, 2, 0)
	even := shape(5, 10, 2, 0)
	even.EvenShardsOnly = true
	for _, c := range []struct {
		name     string
		geometry *tangramv1.Geometry
		ranks    int
		shape    layout.Shape
		want     string
	}{
		{"granules", g, 7, tensorShape, "7 ranks share an expert of 6 granules of"},
		{"query heads", shape(5, 20, 2, 0), 13, tensorShape, "13 ranks share 12 query heads; at most 12 can"},
		{"experts", g, 6, expertShape, "6 expert groups of 1 ranks for 5 experts; at most 5 ranks"},
		{"width 0", g, 0, expertShape, "0 ranks"},
		{"even shards", even, 3, tensorShape, "10 granules do not divide by 3 ranks; possible group sizes: [1 2 5 10]"},
		{"no mode", g, 2, layout.Shape{}, "neither ExpertParallel nor TensorParallel"},
		{"group", g, 4, layout.Shape{Mode: layout.Expert, Layers: map[uint32]layout.LayerShape{1: {ExpertGroup: 3}}},
			"expert groups of 3 do not divide 4 ranks"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &world{v: view(t, c.geometry)}
			_, err := w.to(w.ids(c.ranks), c.shape)
			require.ErrorContains(t, err, c.want)
			require.Nil(t, w.now)
		})
	}
}

func TestPlanRejectsTooLittleMemory(t *testing.T) {
	v := view(t, shape(32, 6, 6, 0))
	w := &world{v: v, spare: 1}
	_, err := w.to(w.ids(4), expertShape)
	require.NoError(t, err)
	before := w.now
	w.limit = map[string]uint64{"pod-1/0/1": layout.SteadyBytes(w.now, v, 0) + 4096}
	_, err = w.to(w.ids(2), expertShape)
	require.ErrorContains(t, err, "rank 0 (pod-1/0/1) needs")
	require.ErrorContains(t, err, "bytes at its peak")
	require.Same(t, before, w.now)

	w.limit = nil
	result, err := w.to(w.ids(2), expertShape)
	require.NoError(t, err)
	peak := uint64(0)
	for _, flip := range result.Plan.Flips {
		peak = max(peak, flip.Parts[0].PeakBytes)
	}
	w.now, w.limit = before, map[string]uint64{"pod-1/0/1": peak}
	_, err = w.to(w.ids(2), expertShape)
	require.NoError(t, err, "exactly the peak suffices")
}

func TestPlanRejectsKVBeyondTarget(t *testing.T) {
	v := view(t, shape(10, 12, 2, 0)) // 4 KV heads, 12 query heads, 2 layers
	w := &world{v: v, spare: 1}
	_, err := w.to(w.ids(8), expertShape)
	require.NoError(t, err)
	// 10 blocks a rank. Expert: 4 heads * 2 layers * 10 = 80 pages each. Tensor at 8: one
	// head on each rank (replicated twice) * 2 layers * 80 blocks = 160.
	w.kv = planner.KV{Pages: 159, BlockTokens: 16, ReservedTokens: 160}
	_, err = w.to(w.ids(8), tensorShape)
	require.ErrorContains(t, err, "needs 160 head pages for its share and has 159")
	w.kv.Pages = 160
	_, err = w.to(w.ids(8), tensorShape)
	require.NoError(t, err)
}

func TestLostPiecesAreReadFromCheckpoint(t *testing.T) {
	v := view(t, shape(11, 6, 3, 40))
	for _, from := range []layout.Shape{expertShape, tensorShape} {
		for _, to := range []layout.Shape{expertShape, tensorShape} {
			w := &world{v: v, spare: 2}
			_, err := w.to(w.ids(4), from)
			require.NoError(t, err)
			w.lost = map[string]bool{"pod-2/0/1": true}
			result, err := w.to(w.ids(3), to)
			require.NoError(t, err)
			require.Positive(t, result.Plan.Cost.CheckpointBytes)
			require.Len(t, result.Final.Members, 3)
			require.Equal(t, result.Plan.Cost.ExpertBoundBytes, result.Plan.Cost.ExpertBytes)
		}
	}
}

// A rank that lost verified pieces fetches them again, though the layout stays the same.
func TestDamageIsRepairedInPlace(t *testing.T) {
	v := view(t, shape(9, 5, 3, 0))
	for _, s := range []layout.Shape{expertShape, tensorShape} {
		w := &world{v: v, spare: 1}
		_, err := w.to(w.ids(3), s)
		require.NoError(t, err)
		w.mutate = func(id string, inv *tangramv1.Inventory) *tangramv1.Inventory {
			if id == "pod-2/0/1" {
				n := len(inv.Layer) - 2
				inv.Layer, inv.Bank, inv.Slot = inv.Layer[:n], inv.Bank[:n], inv.Slot[:n]
				inv.Expert, inv.GranuleStart, inv.GranuleCount = inv.Expert[:n], inv.GranuleStart[:n], inv.GranuleCount[:n]
				inv.Dense = false
			}
			return inv
		}
		result, err := w.to(w.ids(3), s)
		require.NoError(t, err)
		require.Len(t, result.Plan.Flips, 1)
		require.Equal(t, v.Proto.DenseBytes, result.Plan.Cost.DenseBytes)
		require.Positive(t, result.Plan.Cost.ExpertBytes)
	}
}

// Whole experts that a rank holds beyond its layout are kept rather than fetched.
func TestInventoryReplicasAreUsed(t *testing.T) {
	v := view(t, shape(8, 4, 1, 0))
	w := &world{v: v, spare: 1}
	_, err := w.to(w.ids(4), expertShape)
	require.NoError(t, err)
	// Rank 0 also holds the experts of ranks 2 and 3: then two ranks need no fetches.
	w.mutate = func(id string, inv *tangramv1.Inventory) *tangramv1.Inventory {
		if id == "pod-1/0/1" {
			for i, e := range []uint32{4, 6} {
				inv.Layer, inv.Bank, inv.Slot = append(inv.Layer, 0), append(inv.Bank, 0), append(inv.Slot, uint32(20+i))
				inv.Expert, inv.GranuleStart, inv.GranuleCount = append(inv.Expert, e), append(inv.GranuleStart, 0), append(inv.GranuleCount, 4)
			}
		}
		return inv
	}
	result, err := w.to(w.ids(2), expertShape)
	require.NoError(t, err)
	require.Equal(t, 2*v.ExpertBytes, result.Plan.Cost.ExpertBytes)
	require.Equal(t, result.Plan.Cost.ExpertBoundBytes, result.Plan.Cost.ExpertBytes)
}

// The checker rejects each kind of spoilt plan.
func TestCheckerRejectsCorruptedPlans(t *testing.T) {
	v := view(t, shape(11, 6, 3, 0))
	w := &world{v: v, spare: 1}
	_, err := w.to(w.ids(3), expertShape)
	require.NoError(t, err)
	_, err = w.to(w.ids(4), tensorShape)
	require.NoError(t, err)
	sound := w.lastCase
	require.NoError(t, checker.Check(sound))
	flipOf := func(p *tangramv1.Plan, kind tangramv1.FlipKind) *tangramv1.Flip {
		for _, f := range p.Flips {
			if f.Kind == kind {
				return f
			}
		}
		return nil
	}
	last := func(p *tangramv1.Plan) *tangramv1.Flip { return flipOf(p, tangramv1.FlipKind_FLIP_KIND_LAYOUT) }
	fetching := func(p *tangramv1.Plan) *tangramv1.RankPart {
		for _, part := range last(p).Parts {
			if len(part.GetFetches().GetLayer()) > 0 {
				return part
			}
		}
		return nil
	}
	for name, spoil := range map[string]func(*tangramv1.Plan){
		"a fetch left out": func(p *tangramv1.Plan) {
			f := fetching(p).Fetches
			n := len(f.Layer) - 1
			f.Layer, f.Expert, f.Source, f.GranuleStart, f.GranuleCount = f.Layer[:n], f.Expert[:n], f.Source[:n], f.GranuleStart[:n], f.GranuleCount[:n]
		},
		"a granule twice":     func(p *tangramv1.Plan) { fetching(p).Fetches.GranuleStart[0]++ },
		"another source":      func(p *tangramv1.Plan) { f := fetching(p).Fetches; f.Source[0] = f.Source[0]%4 + 1 },
		"a peak too low":      func(p *tangramv1.Plan) { fetching(p).PeakBytes -= v.Proto.PageBytes },
		"a wrong steady":      func(p *tangramv1.Plan) { fetching(p).SteadyBytes += v.Proto.PageBytes },
		"a flip left out":     func(p *tangramv1.Plan) { p.Flips = p.Flips[:len(p.Flips)-1] },
		"flips in disorder":   func(p *tangramv1.Plan) { p.Flips[1], p.Flips[2] = p.Flips[2], p.Flips[1] },
		"a wrong hash":        func(p *tangramv1.Plan) { p.Flips[1].TargetHash[0] ^= 1 },
		"a bank in use":       func(p *tangramv1.Plan) { last(p).Delta.Layers[len(last(p).Delta.Layers)-1].BankOffset = -1 },
		"a slot emptied":      func(p *tangramv1.Plan) { d := last(p).Delta.Layers; d[len(d)-1].Experts[0].Slots[0] = 0 },
		"a part left out":     func(p *tangramv1.Plan) { last(p).Parts = last(p).Parts[1:] },
		"a cost embellished":  func(p *tangramv1.Plan) { p.Cost.ExpertBytes-- },
		"a joiner sans dense": func(p *tangramv1.Plan) { p.Flips[0].Parts[3].Dense = nil },
		"dense from a joiner": func(p *tangramv1.Plan) { p.Flips[0].Parts[3].Dense.SourceByPart[0] = 4 },
	} {
		t.Run(name, func(t *testing.T) {
			bad := sound
			bad.Plan = proto.Clone(sound.Plan).(*tangramv1.Plan)
			spoil(bad.Plan)
			require.Error(t, checker.Check(bad))
		})
	}
}
