package planner

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/geometry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// An inventory is accepted up to the last granule, expert, bank and layer of experts, and rejected beyond.
func TestInventoriesAreAcceptedWithinBounds(t *testing.T) {
	v, err := geometry.New(&tangramv1.Geometry{Model: "test", Layers: 3, Hidden: 16, MoeInner: 40, Experts: 4, TopK: 1, QueryHeads: 12, KvHeads: 4,
		HeadDim: 8, GranuleRows: 8, GranuleBytes: 768, Dtype: tangramv1.DType_DTYPE_BF16, PageBytes: 4096, DenseBytes: 10000, KvHeadTokenBytes: 64,
		SlabFormat: tangramv1.SlabFormat_SLAB_FORMAT_GRANULE_MAJOR, MoeLayers: []uint32{1, 2}})
	require.NoError(t, err)
	require.EqualValues(t, 5, v.Granules)
	for what, c := range map[string]struct {
		layer, expert, bank, start, count uint32
		refused                           string
	}{
		"whole":             {1, 0, 0, 0, 5, ""},
		"the last of all":   {2, 3, 2, 4, 1, ""},
		"a granule beyond":  {2, 3, 2, 4, 2, "granules 4..6 of 5"},
		"beyond 32 bits":    {2, 3, 2, 1, 1<<32 - 1, "granules 1..4294967296 of 5"},
		"nothing":           {1, 0, 0, 0, 0, "granules 0..0 of 5"},
		"no such expert":    {1, 4, 0, 0, 5, "expert 4 of 4"},
		"no such bank":      {1, 0, 3, 0, 5, "bank 3 of 3"},
		"a dense layer":     {0, 0, 0, 0, 5, "entry 0 is layer 0"},
		"no layer any more": {3, 0, 0, 0, 5, "entry 0 is layer 3"},
	} {
		w := &world{in: Input{Revision: "r"}, v: v, cur: &tangramv1.Layout{Banks: 3}, members: []*tangramv1.Member{{Id: "m"}}}
		one := func(x uint32) []uint32 { return []uint32{x} }
		inv := &tangramv1.Inventory{Revision: "r", Layer: one(c.layer), Expert: one(c.expert), Bank: one(c.bank), Slot: one(0),
			GranuleStart: one(c.start), GranuleCount: one(c.count)}
		if err := w.checkInventory(0, inv); c.refused == "" {
			require.NoError(t, err, what)
		} else {
			require.ErrorContains(t, err, c.refused, what)
		}
		inv.Revision = "old"
		require.ErrorContains(t, w.checkInventory(0, inv), `pieces of revision "old", the plan is for "r"`)
		for _, column := range []*[]uint32{&inv.Bank, &inv.Slot, &inv.Expert, &inv.GranuleStart, &inv.GranuleCount} {
			was := *column
			*column = nil
			require.ErrorContains(t, w.checkInventory(0, inv), "columns differ in length")
			*column = was
		}
		require.NoError(t, w.checkInventory(0, &tangramv1.Inventory{}), "an empty one has no revision")
		w.cur, inv.Revision = nil, "r"
		require.ErrorContains(t, w.checkInventory(0, inv), "1 pieces, but no layout serves")
	}
}
