package planner_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/checker"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

const seed = 20260101

func source(t *testing.T) *rand.Rand {
	t.Helper()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// worlds is the number of random cases: n, or fewer with -short, the same first ones.
func worlds(n int) int {
	if testing.Short() {
		return n / 5
	}
	return n
}

func shape(experts, granules, layers uint32, tail uint64) *tangramv1.Geometry {
	g := &tangramv1.Geometry{Model: "test", Layers: layers, Hidden: 16, MoeInner: granules * 8, Experts: experts, TopK: 1,
		QueryHeads: 12, KvHeads: 4, HeadDim: 8, GranuleRows: 8, GranuleBytes: 768, ExpertTailBytes: tail,
		Dtype: tangramv1.DType_DTYPE_BF16, SlabFormat: tangramv1.SlabFormat_SLAB_FORMAT_GRANULE_MAJOR, PageBytes: 4096,
		DenseBytes: 10000, KvHeadTokenBytes: 64}
	for l := range layers {
		if layers < 3 || l != 0 { // with three layers and more the first is a dense one
			g.MoeLayers = append(g.MoeLayers, l)
		}
	}
	return g
}

func view(t *testing.T, g *tangramv1.Geometry) *geometry.View {
	t.Helper()
	v, err := geometry.New(g)
	require.NoError(t, err)
	return v
}

// world simulates agents whose inventories follow the last layout.
type world struct {
	v        *geometry.View
	now      *tangramv1.Layout
	spare    uint32
	names    int
	limit    map[string]uint64
	kv       planner.KV
	mutate   func(id string, inv *tangramv1.Inventory) *tangramv1.Inventory
	lost     map[string]bool
	others   []*tangramv1.Layout // layouts of further pieces of members: staged for one, or not retired yet
	lose     func() bool         // for each piece: it is no longer verified
	lastCase checker.Case
}

// inventory of a member: its pieces of the active layout, and those of the others.
func (w *world) inventory(id string) *tangramv1.Inventory {
	out := layout.InventoryOf(w.now, w.v, uint32(layout.RankOf(w.now, id)))
	seen := map[[6]uint32]bool{}
	all := &tangramv1.Inventory{Dense: out.Dense, Revision: out.Revision}
	add := func(inv *tangramv1.Inventory) {
		for i := range inv.Layer {
			key := [6]uint32{inv.Layer[i], inv.Bank[i], inv.Slot[i], inv.Expert[i], inv.GranuleStart[i], inv.GranuleCount[i]}
			if seen[key] || (w.lose != nil && w.lose()) {
				continue
			}
			seen[key] = true
			all.Layer, all.Bank, all.Slot = append(all.Layer, key[0]), append(all.Bank, key[1]), append(all.Slot, key[2])
			all.Expert, all.GranuleStart, all.GranuleCount = append(all.Expert, key[3]), append(all.GranuleStart, key[4]), append(all.GranuleCount, key[5])
		}
	}
	add(out)
	for _, l := range w.others {
		if rank := layout.RankOf(l, id); rank >= 0 {
			add(layout.InventoryOf(l, w.v, uint32(rank)))
		}
	}
	return all
}

func (w *world) ids(n int) []string {
	var ids []string
	for _, m := range w.now.GetMembers() {
		if len(ids) < n && !w.lost[m.Id] {
			ids = append(ids, m.Id)
		}
	}
	for len(ids) < n {
		w.names++
		ids = append(ids, fmt.Sprintf("pod-%d/0/1", w.names))
	}
	return ids
}

// to plans, checks and moves the world there.
func (w *world) to(target []string, s layout.Shape) (*planner.Result, error) {
	in := planner.Input{World: "w", Revision: "r1", Geometry: w.v, Current: w.now, Target: target, Shape: s,
		Options: planner.Options{SpareBanks: w.spare}}
	c := checker.Case{Geometry: w.v, Revision: "r1", Before: w.now, Inventories: map[string]*tangramv1.Inventory{}, Limits: w.limit,
		Lost: w.lost, Others: w.others, Target: target, Shape: s}
	add := func(m *tangramv1.Member, inv *tangramv1.Inventory) {
		if w.mutate != nil {
			inv = w.mutate(m.Id, inv)
		}
		if inv != nil {
			c.Inventories[m.Id] = inv
		}
		in.Members = append(in.Members, planner.Member{Member: m, Inventory: inv, MemoryBytes: w.limit[m.Id], KV: w.kv})
	}
	for _, m := range w.now.GetMembers() {
		if !w.lost[m.Id] {
			add(m, w.inventory(m.Id))
		}
	}
	for i, id := range target {
		if layout.RankOf(w.now, id) < 0 {
			add(&tangramv1.Member{Id: id, Node: fmt.Sprint("node-", i%3), Pod: fmt.Sprint("pod-", i/2)}, nil)
		}
	}
	result, err := planner.Plan(in)
	if err != nil {
		return nil, err
	}
	c.Plan = result.Plan
	w.lastCase = c
	if err := checker.Check(c); err != nil {
		return nil, fmt.Errorf("CHECKER: %w", err)
	}
	w.now = result.Final
	return result, nil
}

func randomShape(r *rand.Rand, v *geometry.View, n uint32) layout.Shape {
	s := layout.Shape{Mode: layout.Expert, Layers: map[uint32]layout.LayerShape{}}
	if n <= v.Granules && n <= v.Proto.QueryHeads && (r.IntN(2) == 0 || n > v.Proto.Experts) {
		s.Mode = layout.Tensor
	}
	if r.IntN(2) == 0 {
		return s
	}
	pick := func(limit, atMost uint32) uint32 {
		for {
			if d := 1 + uint32(r.IntN(int(n))); n%d == 0 && d <= limit && n/d <= atMost {
				return d
			}
		}
	}
	for l := range v.Proto.Layers {
		var o layout.LayerShape
		if v.Ordinal(l) >= 0 {
			o.ExpertGroup = pick(v.Granules, v.Proto.Experts)
		}
		o.AttentionGroup = pick(v.Proto.QueryHeads, 1<<20)
		s.Layers[l] = o
	}
	return s
}

func pure(s layout.Shape) bool { return len(s.Layers) == 0 }

// Chains of plans between random shapes: the checker accepts each, and plans to pure shapes move exactly the bound.
func TestRandomChainsAreValidAndReachBound(t *testing.T) {
	r := source(t)
	for i := range worlds(150) {
		tail := uint64(0)
		if r.IntN(3) == 0 {
			tail = 40
		}
		v := view(t, shape(1+uint32(r.IntN(70)), 1+uint32(r.IntN(24)), 1+uint32(r.IntN(6)), tail))
		w := &world{v: v, spare: 1 + uint32(r.IntN(3))}
		for range 4 {
			n := 1 + r.IntN(9)
			if uint32(n) > v.Proto.Experts && (uint32(n) > v.Granules || n > 12) {
				continue
			}
			s := randomShape(r, v, uint32(n))
			target := w.ids(n)
			r.Shuffle(len(target), func(a, b int) { target[a], target[b] = target[b], target[a] })
			if w.now != nil && r.IntN(4) == 0 { // replace a member
				target[0] = w.ids(len(w.now.Members) + 1)[len(w.now.Members)]
			}
			name := fmt.Sprintf("world %d: E %d G %d L %d tail %d -> %d ranks %v %v", i, v.Proto.Experts, v.Granules, v.Proto.Layers,
				tail, n, s.Mode, s.Layers)
			result, err := w.to(target, s)
			require.NoError(t, err, name)
			cost := result.Plan.Cost
			require.GreaterOrEqual(t, cost.ExpertBytes, cost.ExpertBoundBytes, name)
			require.Equal(t, cost.DenseBytes, cost.DenseBoundBytes, name)
			if pure(s) {
				require.Equal(t, cost.ExpertBoundBytes, cost.ExpertBytes, name)
			}
			again, err := w.to(target, s)
			require.NoError(t, err, name)
			require.Empty(t, again.Plan.Flips, name+": a plan to the same layout")
		}
	}
}
