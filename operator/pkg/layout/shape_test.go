package layout

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/pkg/geometry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// denseFirst: layer 0 has no experts, layers 1 and 2 have 3 of 6 granules; 12 query heads.
func denseFirst(t *testing.T, evenOnly bool) *geometry.View {
	t.Helper()
	g := proto.CloneOf(testView(t, 12, 4).Proto)
	g.Layers, g.MoeLayers, g.EvenShardsOnly = 3, []uint32{1, 2}, evenOnly
	v, err := geometry.New(g)
	require.NoError(t, err)
	return v
}

type layers = map[uint32]LayerShape

// A mode is a shape of every layer; a layer's own shape overrides it.
func TestResolveSetsShapeOfEachLayer(t *testing.T) {
	v, even := denseFirst(t, false), denseFirst(t, true)
	for _, c := range []struct {
		v     *geometry.View
		s     Shape
		ranks uint32
		want  []LayerShape
	}{
		{v, Shape{Mode: Expert}, 1, []LayerShape{{0, 1}, {1, 1}, {1, 1}}},
		{v, Shape{Mode: Expert}, 3, []LayerShape{{0, 1}, {1, 1}, {1, 1}}},
		{v, Shape{Mode: Tensor}, 1, []LayerShape{{0, 1}, {1, 1}, {1, 1}}},
		{v, Shape{Mode: Tensor}, 6, []LayerShape{{0, 6}, {6, 6}, {6, 6}}},
		{v, Shape{Mode: Expert, Layers: layers{1: {ExpertGroup: 2}}}, 2, []LayerShape{{0, 1}, {2, 1}, {1, 1}}},
		{v, Shape{Mode: Expert, Layers: layers{2: {AttentionGroup: 2}}}, 2, []LayerShape{{0, 1}, {1, 1}, {1, 2}}},
		{v, Shape{Mode: Tensor, Layers: layers{0: {ExpertGroup: 5, AttentionGroup: 2}}}, 4, []LayerShape{{0, 2}, {4, 4}, {4, 4}}},
		{v, Shape{Mode: Expert, Layers: layers{0: {AttentionGroup: 12}, 1: {6, 2}, 2: {4, 3}}}, 12, []LayerShape{{0, 12}, {6, 2}, {4, 3}}},
		{even, Shape{Mode: Tensor}, 3, []LayerShape{{0, 3}, {3, 3}, {3, 3}}},
	} {
		got, err := c.s.Resolve(c.v, c.ranks)
		require.NoError(t, err, "%+v on %d", c.s, c.ranks)
		require.Equal(t, c.want, got, "%+v on %d", c.s, c.ranks)
	}
}

func TestResolveRejectsInvalidShapes(t *testing.T) {
	v, even := denseFirst(t, false), denseFirst(t, true)
	for _, c := range []struct {
		v     *geometry.View
		s     Shape
		ranks uint32
		says  string
	}{
		{v, Shape{Mode: Expert}, 0, "0 ranks; a world needs at least 1 rank"},
		{v, Shape{}, 2, "Mode(0) is neither ExpertParallel nor TensorParallel"},
		{v, Shape{Mode: Expert, Layers: layers{3: {}}}, 2, "layer 3 of 3"},
		{v, Shape{Mode: Expert, Layers: layers{1: {ExpertGroup: 2}}}, 3, "layer 1: expert groups of 2 do not divide 3 ranks"},
		{v, Shape{Mode: Expert, Layers: layers{0: {AttentionGroup: 2}}}, 3, "layer 0: attention groups of 2 do not divide 3 ranks"},
		{v, Shape{Mode: Tensor, Layers: layers{0: {AttentionGroup: 1}}}, 7, "layer 1: 7 ranks share an expert of 6 granules of"},
		{v, Shape{Mode: Expert}, 4, "layer 1: 4 expert groups of 1 ranks for 3 experts; at most 3 ranks can share them"},
		{v, Shape{Mode: Expert, Layers: layers{1: {ExpertGroup: 2}, 2: {ExpertGroup: 2}}}, 8, "layer 1: 4 expert groups of 2 ranks for 3 experts; at most 6 ranks"},
		{v, Shape{Mode: Expert, Layers: layers{0: {AttentionGroup: 13}}}, 13, "layer 0: 13 ranks share 12 query heads; at most 12 can"},
		{even, Shape{Mode: Tensor}, 4, "6 granules do not divide by 4 ranks; possible group sizes: [1 2 3 6]"},
	} {
		_, err := c.s.Resolve(c.v, c.ranks)
		require.ErrorContains(t, err, "shape: ")
		require.ErrorContains(t, err, c.says)
	}
}

// If all ranks share every expert, the required bank size is known: 16 experts in 3 shards of a page each fill one of 3
// pages, and 17 need 6 of 4. Two groups of 3 ranks have fewer experts each.
func TestResolveChecksBankSize(t *testing.T) {
	resolve := func(experts, ranks, group uint32) error {
		v, err := geometry.New(&tangramv1.Geometry{Layers: 1, MoeLayers: []uint32{0}, Hidden: 1, MoeInner: 24, GranuleRows: 1,
			Experts: experts, GranuleBytes: 1, QueryHeads: 24, KvHeads: 1, PageBytes: 4096})
		require.NoError(t, err)
		_, err = Shape{Mode: Expert, Layers: layers{0: {ExpertGroup: group}}}.Resolve(v, ranks)
		return err
	}
	require.NoError(t, resolve(16, 3, 3))
	require.ErrorContains(t, resolve(17, 3, 3), "layer 0: the shards of 3 ranks, each in pages of its own, need 24576 bytes of a bank of 16384")
	require.NoError(t, resolve(17, 6, 3))
}

// The whole text of each error, which users see.
func TestInvalidPlacementsAreRejected(t *testing.T) {
	v := denseFirst(t, false)
	first := testView(t, 12, 4) // whose layers all have experts
	good := [][]uint32{{0, 2}, {1}}
	for _, c := range []struct {
		v      *geometry.View
		mode   Mode
		placed [][][]uint32
		says   string // error text; empty: valid
	}{
		{v, Expert, [][][]uint32{good, nil}, ""},
		{v, Expert, [][][]uint32{nil, {{0, 1, 2}, {0, 1, 2}}}, ""},
		{v, Tensor, [][][]uint32{nil, nil}, ""},
		{v, Expert, [][][]uint32{good}, "shape: a placement of 1 layers for a model with 2 layers of experts"},
		{v, Tensor, [][][]uint32{nil, good}, "shape: layer 2 (entry 1 of the placement): a placement of whole experts, and expert groups of 2"},
		{v, Expert, [][][]uint32{{{0, 1, 2}}, nil}, "shape: layer 1 (entry 0 of the placement): a placement on 1 ranks, the world is to have 2"},
		{first, Expert, [][][]uint32{nil, {{0, 1, 2}, {}}}, "shape: layer 1: rank 1 has no expert"},
		{first, Expert, [][][]uint32{{{0, 3}, {1, 2}}, nil}, "shape: layer 0, rank 0: expert 3 of 3: the last one is 2"},
		{first, Expert, [][][]uint32{{{0}, {1, 1, 2}}, nil}, "shape: layer 0, rank 1: expert 1 twice"},
		{first, Expert, [][][]uint32{good, {{2, 0}, {1}}}, "shape: layer 1, rank 0: expert 0 after 2: experts must ascend"},
		{first, Expert, [][][]uint32{good, {{1}, {2}}}, "shape: layer 1: no rank has expert 0"},
		{first, Expert, [][][]uint32{good, {{1}, {0}}}, "shape: layer 1: no rank has expert 2"},
	} {
		_, err := Shape{Mode: c.mode, Placement: c.placed}.Resolve(c.v, 2)
		if c.says == "" {
			require.NoError(t, err)
			continue
		}
		require.EqualError(t, err, c.says)
		bad := &BadPlacement{}
		require.ErrorAs(t, err, &bad)
	}
	_, err := Shape{Mode: Expert, Placement: [][][]uint32{{{0}, {1}, {2}, {0}}, {{0}, {1}, {2}, {1}}}}.Resolve(v, 4)
	require.NoError(t, err, "more ranks than experts: some have copies")
}

func TestShapePlacementOf(t *testing.T) {
	s := Shape{Placement: [][][]uint32{{{0}}, {{1}}}}
	require.Equal(t, [][]uint32{{0}}, s.PlacementOf(0))
	require.Equal(t, [][]uint32{{1}}, s.PlacementOf(1))
	require.Nil(t, s.PlacementOf(-1), "a layer without experts")
	require.Nil(t, Shape{}.PlacementOf(1))
}

func TestParseMode(t *testing.T) {
	for _, m := range []Mode{Expert, Tensor, Hybrid} {
		got, err := ParseMode(m.String())
		require.NoError(t, err)
		require.Equal(t, m, got)
	}
	require.Equal(t, []string{"ExpertParallel", "TensorParallel", "Mode(7)"}, []string{Expert.String(), Tensor.String(), Mode(7).String()})
	_, err := ParseMode("expert")
	require.ErrorContains(t, err, `unknown mode "expert": use ExpertParallel, TensorParallel or Hybrid`)
}

func TestDivisors(t *testing.T) {
	require.Equal(t, []uint32{1}, Divisors(1))
	require.Equal(t, []uint32{1, 2, 3, 4, 6, 12}, Divisors(12))
}

func TestShapeResolve_WhenGranulesAreTooFew(t *testing.T) {
	for _, c := range []struct {
		model string
		ranks uint32
		says  string
	}{
		{"Qwen3-30B-A3B", 8, "shape: layer 0: 8 ranks share an expert of 6 granules of 128 rows; at most 6 can: set granuleRows to 96 or less (spec.model.granuleRows, --granule-rows), or use smaller groups"},
		{"DeepSeek-V3", 32, "shape: layer 3: 32 ranks share an expert of 16 granules of 128 rows; at most 16 can: use smaller groups, as 2048 rows in blocks of 128 give no more"},
	} {
		g, err := geometry.PublicNamed(c.model)
		require.NoError(t, err)
		v, err := geometry.New(g)
		require.NoError(t, err)
		_, err = Shape{Mode: Tensor}.Resolve(v, c.ranks)
		require.EqualError(t, err, c.says)
	}
}
