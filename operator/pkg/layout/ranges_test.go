package layout

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

func TestRangesOn(t *testing.T) {
	v := denseFirst(t, false) // 3 layers, experts in 1 and 2: 3 of 6 granules; 12 query heads
	for name, c := range map[string]struct {
		ranges Ranges
		ranks  int
		want   []LayerShape
		says   string
	}{
		"nothing said is as ExpertParallel": {nil, 3, []LayerShape{{0, 1}, {1, 1}, {1, 1}}, ""},
		"one range for all":                 {Ranges{{0, ToTheEnd, 2, 4}}, 4, []LayerShape{{0, 4}, {2, 4}, {2, 4}}, ""},
		"all ranks":                         {Ranges{{1, 1, AllRanks, AllRanks}}, 3, []LayerShape{{0, 1}, {3, 3}, {1, 1}}, ""},
		"the same on one rank":              {Ranges{{1, 1, AllRanks, AllRanks}}, 1, []LayerShape{{0, 1}, {1, 1}, {1, 1}}, ""},
		"two ranges, out of order":          {Ranges{{2, ToTheEnd, 2, 1}, {0, 1, 1, 2}}, 2, []LayerShape{{0, 2}, {1, 2}, {2, 1}}, ""},
		"a layer that is not":               {Ranges{{3, ToTheEnd, 1, 1}}, 2, nil, "layers 3 to the last: the model has 3 layers, the last one is 2"},
		"an end that is not":                {Ranges{{1, 3, 1, 1}}, 2, nil, "layers 1 to 3: the model has 3 layers, the last one is 2"},
		"experts do not divide":             {Ranges{{1, 2, 2, 1}}, 3, nil, "layers 1 to 2: expert groups of 2 do not divide 3 ranks; groups of [1 3] do, and 2 or 4 ranks would"},
		"heads do not divide":               {Ranges{{0, 0, 1, 4}}, 3, nil, "layer 0: attention groups of 4 do not divide 3 ranks; groups of [1 3] do, and 4 ranks would"},
		"more ranks than heads":             {Ranges{{0, 0, 1, AllRanks}, {1, 2, 13, 1}}, 13, nil, "layer 0: 13 ranks share 12 query heads"},
		"more ranks than granules":          {Ranges{{1, 2, 8, 1}}, 8, nil, "layer 1: 8 ranks share an expert of 6 granules of"},
		"more groups than experts":          {Ranges{{0, 0, 1, 1}}, 4, nil, "layer 1: 4 expert groups of 1 ranks for 3 experts; at most 3 ranks can share them"},
		"groups beyond the last rank":       {Ranges{{0, ToTheEnd, 1, 2}}, 1, nil, "layers 0 to the last: attention groups of 2 do not divide 1 ranks; groups of [1] do, and 2 ranks would"},
	} {
		s, err := c.ranges.On(v, c.ranks)
		if c.says != "" {
			require.ErrorContains(t, err, c.says, name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, Hybrid, s.Mode)
		got, err := s.Resolve(v, uint32(c.ranks))
		require.NoError(t, err, name)
		require.Equal(t, c.want, got, name)
	}
	even := denseFirst(t, true)
	_, err := Ranges{{1, 2, 4, 1}}.On(even, 4)
	require.ErrorContains(t, err, "the engine takes even shards only")
}

func TestRangesString(t *testing.T) {
	require.Equal(t, "0-2=2/4 3=1/1 5-=all/1", Ranges{{0, 2, 2, 4}, {3, 3, 1, 1}, {5, ToTheEnd, AllRanks, 1}}.String())
	require.Equal(t, "5 ranges", make(Ranges, 5).String())
	require.Empty(t, Ranges{}.String())
}

func randomRanges(r *rand.Rand, layers, ranks int) Ranges {
	var out Ranges
	sizes := append(Divisors(uint32(ranks)), AllRanks)
	for first := r.IntN(2); first < layers; {
		last := first + r.IntN(layers-first)
		x := Range{first, last, sizes[r.IntN(len(sizes))], sizes[r.IntN(len(sizes))]}
		if last == layers-1 && r.IntN(2) == 0 {
			x.Last = ToTheEnd
		}
		out = append(out, x)
		first = last + 1 + r.IntN(2)
	}
	r.Shuffle(len(out), func(a, b int) { out[a], out[b] = out[b], out[a] })
	return out
}

// A fitting shape is unchanged at its width. At any other width it becomes one that fits, without larger groups than
// requested unless no smaller ones fit.
func TestRangesFitted(t *testing.T) {
	r := rand.New(rand.NewPCG(20261127, 1))
	for range 2000 {
		v := testView(t, []uint32{12, 4, 8}[r.IntN(3)], 4)
		layers, ranks := int(v.Proto.Layers), 1+r.IntN(8)
		ranges := randomRanges(r, layers, ranks)
		exact, err := ranges.On(v, ranks)
		fitted := ranges.Fitted(v, ranks)
		if err == nil {
			require.Equal(t, exact, fitted, "%v on %d", ranges, ranks)
		}
		for other := range min(int(v.Proto.Experts), 6) { // every number of ranks with an expert each fits in some way
			n := other + 1
			s := ranges.Fitted(v, n)
			shapes, err := s.Resolve(v, uint32(n))
			require.NoError(t, err, "%v on %d", ranges, n)
			asked := ranges.Shape(layers, n)
			for l, got := range shapes {
				require.LessOrEqual(t, got.AttentionGroup, asked.Layers[uint32(l)].AttentionGroup)
				if v.Ordinal(uint32(l)) >= 0 {
					require.LessOrEqual(t, got.ExpertGroup, asked.Layers[uint32(l)].ExpertGroup)
				}
			}
		}
	}
	v := denseFirst(t, false) // 3 experts of 6 granules
	four, err := Ranges{{0, ToTheEnd, 1, 1}}.Fitted(v, 4).Resolve(v, 4)
	require.NoError(t, err)
	require.Equal(t, LayerShape{2, 1}, four[1], "4 ranks cannot have an expert each")
}

// A layout's ranges cover each layer once, with equal neighbors merged.
func TestRangesOf(t *testing.T) {
	layer := func(g, a uint32, bare bool) *tangramv1.LayerLayout {
		l := &tangramv1.LayerLayout{ExpertGroupSize: g, AttentionGroupSize: a}
		if !bare {
			l.Experts = []*tangramv1.ExpertGroup{{}}
		}
		return l
	}
	of := func(layers ...*tangramv1.LayerLayout) Ranges { return RangesOf(&tangramv1.Layout{Layers: layers}) }
	require.Nil(t, RangesOf(nil))
	require.Equal(t, Ranges{{0, 1, 2, 4}}, of(layer(2, 4, false), layer(2, 4, false)))
	require.Equal(t, Ranges{{0, 0, 2, 4}, {1, 1, 1, 4}, {2, 2, 1, 1}}, of(layer(2, 4, false), layer(1, 4, false), layer(1, 1, false)))
	require.Equal(t, Ranges{{0, 2, 2, 4}}, of(layer(0, 4, true), layer(2, 4, false), layer(0, 4, true)), "a layer without experts goes along")
	require.Equal(t, Ranges{{0, 0, 1, 1}, {1, 1, 2, 4}}, of(layer(0, 1, true), layer(2, 4, false)))
	require.Equal(t, Ranges{{0, 1, 2, 4}, {2, 2, 1, 4}}, of(layer(0, 4, true), layer(2, 4, false), layer(1, 4, false)))
}
