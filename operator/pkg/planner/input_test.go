package planner_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// sound is a valid input of a plan from two ranks to three.
func sound(t *testing.T) planner.Input {
	t.Helper()
	b := at(t, view(t, shape(8, 4, 2, 0)), 2, expertShape)
	in := planner.Input{World: "w", Revision: "r1", Geometry: b.v, Current: b.now, Shape: expertShape, Target: []string{b.now.Members[0].Id, b.now.Members[1].Id, "new"}}
	for rank, m := range b.now.Members {
		in.Members = append(in.Members, planner.Member{Member: m, Inventory: layout.InventoryOf(b.now, b.v, uint32(rank))})
	}
	in.Members = append(in.Members, planner.Member{Member: &tangramv1.Member{Id: "new"}})
	return in
}

// Each invalid input is rejected before planning, and the error names it.
func TestPlanRejectsInvalidInput(t *testing.T) {
	_, err := planner.Plan(sound(t))
	require.NoError(t, err)
	for text, spoil := range map[string]func(*planner.Input){
		"plan: no geometry":        func(in *planner.Input) { in.Geometry = nil },
		"plan: the current layout": func(in *planner.Input) { in.Current = proto.CloneOf(in.Current); in.Current.Banks = 0 },
		`plan: the world serves revision "r1", the plan is for "r2"`:                     func(in *planner.Input) { in.Revision = "r2" },
		`plan: the layout is of world "w", the plan is for "v"`:                          func(in *planner.Input) { in.World = "v" },
		`plan: member id "" is empty or listed twice`:                                    func(in *planner.Input) { in.Members[2].Member = &tangramv1.Member{} },
		`plan: member id "new" is empty or listed twice`:                                 func(in *planner.Input) { in.Members = append(in.Members, in.Members[2]) },
		`plan: member "new" is listed twice in the target`:                               func(in *planner.Input) { in.Target = append(in.Target, "new") },
		`plan: member "stranger" is in the target, but no agent reports it`:              func(in *planner.Input) { in.Target = append(in.Target, "stranger") },
		`plan: member "pod-1/0/1" is in the target, but no agent reports it`:             func(in *planner.Input) { in.Members = in.Members[1:] },
		`inventory of rank 1 (pod-2/0/1): pieces of revision "r0", the plan is for "r1"`: func(in *planner.Input) { in.Members[1].Inventory.Revision = "r0" },
		"shape: 0 ranks": func(in *planner.Input) { in.Target = nil },
	} {
		in := sound(t)
		spoil(&in)
		_, err := planner.Plan(in)
		require.ErrorContains(t, err, text)
	}
	_, err = planner.Headroom(planner.HeadroomInput{Layout: sound(t).Current})
	require.ErrorContains(t, err, "headroom: plan: no geometry")
	in := sound(t)
	in.Members[1].Inventory.Revision = "r0"
	_, err = planner.Repair(planner.RepairInput{World: "w", Revision: "r1", Geometry: in.Geometry, Current: in.Current, Survivors: in.Members[:2]})
	require.ErrorContains(t, err, "retire the old revision first")
	_, err = planner.Repair(planner.RepairInput{World: "v", Revision: "r1", Geometry: in.Geometry, Current: in.Current, Survivors: in.Members[:2]})
	require.ErrorContains(t, err, "the layout is of world")
}

// A text without a wire form has no hash: the error reports it.
func TestPlanRejectsInvalidUTF8(t *testing.T) {
	in := sound(t)
	in.Current, in.Members, in.World = nil, []planner.Member{{Member: &tangramv1.Member{Id: "a"}}}, "\xff"
	in.Target = []string{"a"}
	_, err := planner.Plan(in)
	require.ErrorContains(t, err, "plan: marshal layout")
	in = sound(t)
	in.Current = proto.CloneOf(in.Current)
	in.World, in.Current.World = "\xff", "\xff"
	_, err = planner.Plan(in)
	require.ErrorContains(t, err, "plan: marshal layout")
	in.Target = in.Target[:2]
	_, err = planner.Plan(in)
	require.ErrorContains(t, err, "plan: marshal layout", "also where nothing changes")
	_, err = planner.Repair(planner.RepairInput{World: "\xff", Revision: "r1", Geometry: in.Geometry, Current: in.Current, Survivors: in.Members[:2]})
	require.ErrorContains(t, err, "plan: marshal layout")
}

// Each kind of flip that does not fit is rejected with its number and name.
func TestMemoryIsCheckedForEachFlip(t *testing.T) {
	v := view(t, shape(16, 6, 5, 0))
	refused := func(from *tangramv1.Layout, id string, limit uint64, s layout.Shape, target ...string) error {
		w := &world{v: v, now: from, spare: 1, limit: map[string]uint64{id: limit}}
		_, err := w.to(target, s)
		return err
	}
	require.ErrorContains(t, refused(nil, "a", 4096, expertShape, "a", "b"), "flip 0 (FLIP_KIND_FIRST): rank 0 (a)")
	w := &world{v: v, spare: 1}
	_, err := w.to([]string{"a", "b"}, expertShape)
	require.NoError(t, err)
	two := w.now
	result, err := w.to([]string{"a", "b", "c"}, expertShape)
	require.NoError(t, err)
	joined, three := result.Layouts[0], w.now
	require.ErrorContains(t, refused(two, "c", 4096, expertShape, "a", "b", "c"), "flip 0 (FLIP_KIND_JOIN): rank 2 (c)")
	require.ErrorContains(t, refused(two, "c", v.DensePages*4096, expertShape, "a", "b", "c"), "flip 1 (FLIP_KIND_LAYOUT): rank 2 (c)")
	require.ErrorContains(t, refused(joined, "a", 4096, expertShape, "a", "b"), "flip 0 (FLIP_KIND_LEAVE): rank 0 (a)")
	require.ErrorContains(t, refused(three, "a", layout.SteadyBytes(three, v, 0), tensorShape, "a", "b", "c"), "flip 0 (FLIP_KIND_LAYOUT): rank 0 (a)")
}

// KV is checked only if something changes: a settled world keeps serving.
func TestKVIsNotChecked_WhenNothingChanges(t *testing.T) {
	w := &world{v: view(t, shape(8, 4, 2, 0))}
	_, err := w.to(w.ids(2), expertShape)
	require.NoError(t, err)
	require.EqualValues(t, 3, w.now.Banks, "a spare bank unless more are asked for")
	w.kv = planner.KV{Pages: 1, BlockTokens: 16, ReservedTokens: 1000}
	result, err := w.to(w.ids(2), expertShape)
	require.NoError(t, err)
	require.Empty(t, result.Plan.Flips)
	_, err = w.to(w.ids(2), tensorShape)
	require.ErrorContains(t, err, "plan: KV: 126 blocks of 16 tokens are reserved")
}

// A full rewrite walks: layers move in the order of their banks, so that the free banks end at the other end, for any
// initial place.
func TestFullRewriteLeavesFreeBanksAtOneEnd(t *testing.T) {
	v := view(t, shape(12, 6, 5, 0)) // 4 layers of experts, 5 banks
	free := func(l *tangramv1.Layout) (out []int) {
		used := map[uint32]bool{}
		for _, layer := range v.Proto.MoeLayers {
			used[layout.Bank(l.Layers[layer], v)] = true
		}
		for bank := range l.Banks {
			if !used[bank] {
				out = append(out, int(bank))
			}
		}
		return out
	}
	pairs := func(layers ...uint32) layout.Shape {
		s := layout.Shape{Mode: layout.Expert, Layers: map[uint32]layout.LayerShape{}}
		for _, l := range layers {
			s.Layers[l] = layout.LayerShape{ExpertGroup: 2}
		}
		return s
	}
	w := &world{v: v, spare: 1}
	target := w.ids(4)
	for _, c := range []struct {
		s    layout.Shape
		free int
	}{
		{expertShape, 4}, {tensorShape, 0}, {expertShape, 4},
		{pairs(3), 2}, {tensorShape, 0},
		{expertShape, 4}, {pairs(2), 2}, {pairs(2, 3), 1}, {pairs(1, 2, 3), 0}, {tensorShape, 4},
	} {
		_, err := w.to(target, c.s)
		require.NoError(t, err)
		require.Equal(t, []int{c.free}, free(w.now), "%v", c.s)
	}
	// Two spare banks: two layers at a time.
	w = &world{v: v, spare: 2}
	target = w.ids(4)
	_, err := w.to(target, expertShape)
	require.NoError(t, err)
	for _, want := range [][]int{{0, 1}, {4, 5}} {
		result, err := w.to(target, map[bool]layout.Shape{true: tensorShape, false: expertShape}[want[0] == 0])
		require.NoError(t, err)
		require.Len(t, result.Plan.Flips, 2)
		require.Equal(t, want, free(w.now))
	}
	_, err = w.to(target, pairs(2, 3))
	require.NoError(t, err)
	require.Equal(t, []int{1, 2}, free(w.now))
	_, err = w.to(target, tensorShape)
	require.NoError(t, err)
	require.Equal(t, []int{4, 5}, free(w.now), "the free ones were below most others")
	// None: no layer can be rewritten.
	w.now = proto.CloneOf(w.now)
	w.now.Banks = 4
	_, err = w.to(target, expertShape)
	require.ErrorContains(t, err, "4 layers must be rewritten, but the layout has 4 banks for 4 MoE layers")
}
