package checker_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/pkg/checker"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

var (
	expertShape = layout.Shape{Mode: layout.Expert}
	tensorShape = layout.Shape{Mode: layout.Tensor}
)

// view of 3 layers, of which the first has no experts. With a tail, 5 granules and the tail are not a whole number of
// pages.
func view(t *testing.T, tail uint64) *geometry.View {
	t.Helper()
	v, err := geometry.New(&tangramv1.Geometry{Model: "test", Layers: 3, MoeLayers: []uint32{1, 2}, Hidden: 16, MoeInner: 48, Experts: 11,
		TopK: 1, QueryHeads: 12, KvHeads: 4, HeadDim: 8, GranuleRows: 8, GranuleBytes: 768, ExpertTailBytes: tail,
		Dtype: tangramv1.DType_DTYPE_BF16, SlabFormat: tangramv1.SlabFormat_SLAB_FORMAT_GRANULE_MAJOR, PageBytes: 4096, DenseBytes: 10000,
		KvHeadTokenBytes: 64})
	require.NoError(t, err)
	return v
}

// world makes sound plans, and their cases for the checker.
type world struct {
	v     *geometry.View
	now   *tangramv1.Layout
	names int
	limit map[string]uint64
	spoil func(*tangramv1.Inventory) // changes inventories before planning
	last  checker.Case
}

func (w *world) inventories(lost map[string]bool) map[string]*tangramv1.Inventory {
	out := map[string]*tangramv1.Inventory{}
	for rank, m := range w.now.GetMembers() {
		if !lost[m.Id] {
			out[m.Id] = layout.InventoryOf(w.now, w.v, uint32(rank))
			if w.spoil != nil {
				w.spoil(out[m.Id])
			}
		}
	}
	return out
}

// to takes the world to n ranks of a shape, without the lost members.
func (w *world) to(t *testing.T, n int, s layout.Shape, lost ...string) checker.Case {
	t.Helper()
	c := checker.Case{Geometry: w.v, Revision: "r1", Before: w.now, Limits: w.limit, Shape: s, Lost: map[string]bool{}}
	for _, id := range lost {
		c.Lost[id] = true
	}
	c.Inventories = w.inventories(c.Lost)
	in := planner.Input{World: "w", Revision: "r1", Geometry: w.v, Current: w.now, Shape: s}
	for _, m := range w.now.GetMembers() {
		if c.Lost[m.Id] {
			continue
		}
		in.Members = append(in.Members, planner.Member{Member: m, Inventory: c.Inventories[m.Id]})
		if len(c.Target) < n {
			c.Target = append(c.Target, m.Id)
		}
	}
	for len(c.Target) < n {
		w.names++
		id := fmt.Sprintf("pod-%d/0/1", w.names)
		in.Members = append(in.Members, planner.Member{Member: &tangramv1.Member{Id: id, Pod: id}})
		c.Target = append(c.Target, id)
	}
	in.Target = c.Target
	result, err := planner.Plan(in)
	require.NoError(t, err)
	c.Plan = result.Plan
	require.NoError(t, checker.Check(c))
	w.now, w.last = result.Final, c
	return c
}

// repair continues without the lost ranks.
func (w *world) repair(t *testing.T, lost ...int) checker.Case {
	t.Helper()
	c := checker.Case{Geometry: w.v, Revision: "r1", Before: w.now, Lost: map[string]bool{}}
	for _, rank := range lost {
		c.Lost[w.now.Members[rank].Id] = true
	}
	c.Inventories = w.inventories(c.Lost)
	in := planner.RepairInput{World: "w", Revision: "r1", Geometry: w.v, Current: w.now}
	for _, m := range w.now.Members {
		if !c.Lost[m.Id] {
			c.Target = append(c.Target, m.Id)
			in.Survivors = append(in.Survivors, planner.Member{Member: m, Inventory: c.Inventories[m.Id]})
		}
	}
	result, err := planner.Repair(in)
	require.NoError(t, err)
	c.Plan = result.Plan
	require.NoError(t, checker.Check(c))
	w.now, w.last = result.Final, c
	return c
}

// sealed recomputes hashes and, from flip i on, epochs from the deltas, so that only the rule under test can reject.
func sealed(t *testing.T, c *checker.Case) {
	t.Helper()
	now := c.Before
	for _, f := range c.Plan.Flips {
		base, epoch := now, now.GetEpoch()+1
		if base == nil {
			base = &tangramv1.Layout{World: c.Plan.World, Revision: c.Revision, GeometryFingerprint: c.Geometry.Fingerprint,
				Layers: make([]*tangramv1.LayerLayout, c.Geometry.Proto.Layers)}
		}
		next, err := layout.ApplyDelta(base, f.Delta, epoch)
		require.NoError(t, err)
		f.Epoch = epoch
		f.TargetHash, err = layout.Hash(next)
		require.NoError(t, err)
		c.Plan.FinalHash = f.TargetHash
		now = next
	}
}

// spoilt is one kind of fault, and the checker's error.
type spoilt struct {
	name  string
	spoil func(c *checker.Case)
	says  string
	seal  bool
}

func object(t *testing.T, sound checker.Case, cases []spoilt) {
	t.Helper()
	for _, s := range cases {
		t.Run(s.name, func(t *testing.T) {
			bad := sound
			bad.Plan = proto.CloneOf(sound.Plan)
			s.spoil(&bad)
			if s.seal {
				sealed(t, &bad)
			}
			require.ErrorContains(t, checker.Check(bad), s.says)
		})
	}
}

func flip(c *checker.Case, kind tangramv1.FlipKind) *tangramv1.Flip {
	for _, f := range c.Plan.Flips {
		if f.Kind == kind {
			return f
		}
	}
	return nil
}
