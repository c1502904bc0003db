package layout

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/pkg/geometry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Each bound of Validate from both sides: the last valid value, and the first invalid one. Empty: valid.
func TestValidateBounds(t *testing.T) {
	v := testView(t, 12, 4) // 6 granules, 3 experts
	whole := func(l *tangramv1.Layout, ranks ...uint32) {
		l.Layers[1].ExpertGroupSize = uint32(len(ranks))
		l.Layers[1].Experts = []*tangramv1.ExpertGroup{{Ranks: ranks, Slots: []uint32{1, 2, 3}}}
	}
	for _, c := range []struct {
		name  string
		spoil func(*tangramv1.Layout)
		says  string
	}{
		{"an empty id", func(l *tangramv1.Layout) { l.Members[1].Id = "" }, `member id "" is empty`},
		{"just enough banks", func(l *tangramv1.Layout) { l.Banks = 2 }, ""},
		{"the most banks", func(l *tangramv1.Layout) { l.Banks = 2 + maxSpareBanks }, ""},
		{"too many banks", func(l *tangramv1.Layout) { l.Banks = 3 + maxSpareBanks }, "banks for 2 MoE layers"},
		{"layers in disorder", func(l *tangramv1.Layout) { l.Layers[0].Layer = 1 }, "entry 0 is for layer 1"},
		{"a layer missing", func(l *tangramv1.Layout) { l.Layers[0] = nil }, "entry 0"},
		{"the last bank", func(l *tangramv1.Layout) { l.Layers[1].BankOffset = 1 }, ""},
		{"beyond the last bank", func(l *tangramv1.Layout) { l.Layers[1].BankOffset = 2 }, "bank 3 of 3"},
		{"far beyond", func(l *tangramv1.Layout) { l.Layers[1].BankOffset = 9 }, "bank 10 of 3"},
		{"dense on a rank too many", func(l *tangramv1.Layout) { l.Dense.Ranks = []uint32{0, 2} }, "must ascend below 2, found 2"},
		{"dense on a rank twice", func(l *tangramv1.Layout) { l.Dense.Ranks = []uint32{0, 0} }, "found 0"},
		{"dense on one rank", func(l *tangramv1.Layout) { l.Dense.Ranks = []uint32{1} }, ""},
		{"experts on a rank too many", func(l *tangramv1.Layout) { l.Layers[0].Experts[1].Ranks[0] = 2 }, "rank 2 of 2"},
		{"a group of nobody", func(l *tangramv1.Layout) {
			l.Layers[1].ExpertGroupSize, l.Layers[1].Experts = 0, []*tangramv1.ExpertGroup{{Slots: []uint32{1, 2, 3}}}
		}, "0 ranks"},
		{"heads of nobody", func(l *tangramv1.Layout) {
			l.Layers[1].AttentionGroupSize, l.Layers[1].Attention = 0, []*tangramv1.AttentionGroup{{QueryHeadBounds: []uint32{0}}}
		}, "0 ranks"},
		{"without an expert that the layer before has", func(l *tangramv1.Layout) { l.Layers[1].Experts[1].Slots[0] = 0 }, "layer 1: expert 1 has no owner"},
		{"without the last expert", func(l *tangramv1.Layout) { l.Layers[1].Experts[0].Slots[2] = 0 }, "expert 2 has no owner"},
		{"an expert too many", func(l *tangramv1.Layout) { l.Layers[0].Experts[1].Slots[0] = 4 }, "expert 3 of 3"},
		{"a copy on another rank", func(l *tangramv1.Layout) { l.Layers[0].Experts[1].Slots = []uint32{2, 1} }, ""},
		{"a granule each", func(l *tangramv1.Layout) { whole(l, 0, 1, 0, 1, 0, 1) }, ""},
		{"more positions than granules", func(l *tangramv1.Layout) { whole(l, 0, 1, 0, 1, 0, 1, 0) }, "share an expert of 6 granules"},
		{"as many slots as a bank has", func(l *tangramv1.Layout) {
			l.Layers[0].Experts[0].Slots = append([]uint32{1, 3}, make([]uint32, 1+geometry.SpareSlots)...)
		}, ""},
		{"a slot too many", func(l *tangramv1.Layout) {
			l.Layers[0].Experts[0].Slots = append([]uint32{1, 3}, make([]uint32, 2+geometry.SpareSlots)...)
		}, "slots, a bank has"},
		{"heads from the second", func(l *tangramv1.Layout) { l.Layers[0].Attention[0].QueryHeadBounds[0] = 1 }, "numbers from 0 to 12"},
		{"a bound too many", func(l *tangramv1.Layout) { l.Layers[0].Attention[0].QueryHeadBounds = []uint32{0, 1, 2, 12} }, "3 numbers from 0 to 12"},
		{"a bound too few", func(l *tangramv1.Layout) { l.Layers[0].Attention[0].QueryHeadBounds = []uint32{0, 12} }, "3 numbers from 0 to 12"},
		{"one head for the first", func(l *tangramv1.Layout) { l.Layers[0].Attention[0].QueryHeadBounds[1] = 1 }, ""},
		{"no head for the second", func(l *tangramv1.Layout) { l.Layers[0].Attention[0].QueryHeadBounds[1] = 12 }, "position 1 has no query head"},
		{"a rank twice for heads", func(l *tangramv1.Layout) { l.Layers[0].Attention[0].Ranks[1] = 0 }, "rank 0 is listed twice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := sound(v)
			c.spoil(l)
			if err := Validate(l, v); c.says == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.says)
			}
		})
	}
}

// Engines with even shards only reject others; a layer without experts has no expert groups.
func TestValidateChecksModelConstraints(t *testing.T) {
	g := proto.CloneOf(testView(t, 12, 4).Proto)
	g.EvenShardsOnly = true
	even, err := geometry.New(g)
	require.NoError(t, err)
	for n, says := range map[int]string{2: "", 3: "", 4: "even shards only", 6: ""} {
		l := sound(even)
		ranks := []uint32{0, 1, 0, 1, 0, 1}[:n]
		l.Layers[0].ExpertGroupSize = uint32(n)
		l.Layers[0].Experts = []*tangramv1.ExpertGroup{{Ranks: ranks, Slots: []uint32{1, 2, 3}}}
		if err := Validate(l, even); says == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, says)
		}
	}
	g = proto.CloneOf(testView(t, 12, 4).Proto)
	g.MoeLayers = []uint32{1}
	first, err := geometry.New(g)
	require.NoError(t, err)
	l := sound(first)
	require.ErrorContains(t, Validate(l, first), "it has expert groups, but no experts in this model")
	l.Layers[0].Experts, l.Layers[0].BankOffset = nil, -7 // unused without experts
	require.NoError(t, Validate(l, first))
}

func TestHeadBoundsRejectsInvalidRanks(t *testing.T) {
	v := testView(t, 12, 4)
	for _, n := range []uint32{0, 13} {
		_, err := HeadBounds(v, n)
		require.Error(t, err)
	}
	b, err := HeadBounds(v, 12)
	require.NoError(t, err)
	require.Len(t, b, 13)
}
