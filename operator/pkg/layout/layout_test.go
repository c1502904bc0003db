package layout

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/pkg/geometry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

func testView(t testing.TB, heads, kv uint32) *geometry.View {
	v, err := geometry.New(&tangramv1.Geometry{Layers: 2, MoeLayers: []uint32{0, 1}, Hidden: 16, MoeInner: 48, GranuleRows: 8,
		Experts: 3, GranuleBytes: 600, QueryHeads: heads, KvHeads: kv, PageBytes: 4096, DenseBytes: 100})
	require.NoError(t, err)
	return v
}

func sound(v *geometry.View) *tangramv1.Layout {
	l := &tangramv1.Layout{World: "w", Epoch: 3, GeometryFingerprint: v.Fingerprint, Banks: 3,
		Members: []*tangramv1.Member{{Id: "a"}, {Id: "b"}}, Dense: &tangramv1.DenseLayout{Ranks: []uint32{0, 1}}}
	for i := range uint32(2) {
		l.Layers = append(l.Layers, &tangramv1.LayerLayout{Layer: i, ExpertGroupSize: 1, AttentionGroupSize: 2,
			Experts:   []*tangramv1.ExpertGroup{{Ranks: []uint32{0}, Slots: []uint32{1, 0, 3}}, {Ranks: []uint32{1}, Slots: []uint32{2}}},
			Attention: []*tangramv1.AttentionGroup{{Ranks: []uint32{0, 1}, QueryHeadBounds: []uint32{0, 5, v.Proto.QueryHeads}}}})
	}
	return l
}

func TestValidateNamesEachFault(t *testing.T) {
	v := testView(t, 12, 4)
	require.NoError(t, Validate(sound(v), v))
	for want, spoil := range map[string]func(*tangramv1.Layout){
		"no members":                 func(l *tangramv1.Layout) { l.Members = nil },
		"made for geometry":          func(l *tangramv1.Layout) { l.GeometryFingerprint = []byte("x") },
		`"a" is empty or listed tw`:  func(l *tangramv1.Layout) { l.Members[1].Id = "a" },
		"1 banks for 2 MoE layers":   func(l *tangramv1.Layout) { l.Banks = 1 },
		"1 layers, the geometry has": func(l *tangramv1.Layout) { l.Layers = l.Layers[:1] },
		"layers 0 and 1 share bank":  func(l *tangramv1.Layout) { l.Layers[0].BankOffset = 1 },
		"layer 0: bank -1 of 3":      func(l *tangramv1.Layout) { l.Layers[0].BankOffset = -1 },
		"expert 1 has no owner":      func(l *tangramv1.Layout) { l.Layers[0].Experts[1].Slots[0] = 0 },
		"expert 8 of 3":              func(l *tangramv1.Layout) { l.Layers[0].Experts[1].Slots[0] = 9 },
		"expert 0 twice":             func(l *tangramv1.Layout) { l.Layers[0].Experts[0].Slots[1] = 1 },
		"rank 0 is in two groups":    func(l *tangramv1.Layout) { l.Layers[0].Experts[1].Ranks[0] = 0 },
		"rank 7 of 2":                func(l *tangramv1.Layout) { l.Layers[0].Experts[1].Ranks[0] = 7 },
		"of the layer is 2":          func(l *tangramv1.Layout) { l.Layers[0].ExpertGroupSize = 2 },
		"no attention group":         func(l *tangramv1.Layout) { l.Layers[1].Attention = nil },
		"3 numbers from 0 to 12":     func(l *tangramv1.Layout) { l.Layers[1].Attention[0].QueryHeadBounds[2] = 11 },
		"position 0 has no query":    func(l *tangramv1.Layout) { l.Layers[1].Attention[0].QueryHeadBounds[1] = 0 },
		"dense ranks must ascend":    func(l *tangramv1.Layout) { l.Dense.Ranks = []uint32{1, 0} },
		"no rank has the dense":      func(l *tangramv1.Layout) { l.Dense = nil },
	} {
		l := sound(v)
		spoil(l)
		require.ErrorContains(t, Validate(l, v), want)
	}
}

func TestHeadBoundsSplitInsideKVGroups(t *testing.T) {
	for _, c := range []struct {
		heads, kv, t uint32
		want         []uint32
	}{
		{12, 4, 1, []uint32{0, 12}}, {12, 4, 3, []uint32{0, 4, 8, 12}}, {12, 4, 4, []uint32{0, 3, 6, 9, 12}},
		{64, 4, 8, []uint32{0, 8, 16, 24, 32, 40, 48, 56, 64}}, {12, 4, 6, []uint32{0, 3, 4, 6, 9, 10, 12}},
	} {
		got, err := HeadBounds(testView(t, c.heads, c.kv), c.t)
		require.NoError(t, err)
		require.Equal(t, c.want, got, "%d heads, %d KV heads, %d ranks", c.heads, c.kv, c.t)
	}
	for heads := uint32(1); heads <= 24; heads++ {
		for kv := uint32(1); kv <= heads; kv++ {
			for n := uint32(1); heads%kv == 0 && n <= heads; n++ {
				v := testView(t, heads, kv)
				b, err := HeadBounds(v, n)
				require.NoError(t, err)
				require.Len(t, b, int(n)+1)
				require.Zero(t, b[0])
				readers := make([][]int, kv) // query heads of each rank that reads the KV head
				for p := range n {
					require.Less(t, b[p], b[p+1])
					if n < kv {
						require.Equal(t, heads*(p+1)/n, b[p+1], "even, and no more than that")
						continue
					}
					first, last := v.KVHeads(b[p], b[p+1])
					require.Equal(t, first+1, last, "a rank reads one KV head")
					readers[first] = append(readers[first], int(b[p+1]-b[p]))
				}
				require.Equal(t, heads, b[n])
				for _, shares := range readers {
					if n >= kv {
						require.InDelta(t, float64(n)/float64(kv), len(shares), .999, "ranks of a KV head")
						require.LessOrEqual(t, slices.Max(shares)-slices.Min(shares), 1, "query heads of a rank")
					}
				}
			}
		}
	}
}

func TestDiffThenApplyPreservesHash(t *testing.T) {
	v := testView(t, 12, 4)
	a, b := sound(v), sound(v)
	b.Epoch, b.Layers[1].BankOffset = 4, 1
	b.Members = append(b.Members, &tangramv1.Member{Id: "c"})
	d, err := Diff(a, b)
	require.NoError(t, err)
	require.Len(t, d.Layers, 1)
	got, err := ApplyDelta(a, d, 4)
	require.NoError(t, err)
	want, err := Hash(b)
	require.NoError(t, err)
	hash, err := Hash(got)
	require.NoError(t, err)
	require.Equal(t, want, hash)
}

func TestLeaveRenumbersAndRejectsOwners(t *testing.T) {
	v := testView(t, 12, 4)
	l := sound(v)
	_, err := ApplyDelta(l, &tangramv1.LayoutDelta{Renumber: []uint32{1, 0}}, 4)
	require.ErrorContains(t, err, "leaving rank 1 still owns experts")
	for _, layer := range l.Layers {
		layer.Experts = []*tangramv1.ExpertGroup{{Ranks: []uint32{1}, Slots: []uint32{1, 2, 3}}}
		layer.Attention = []*tangramv1.AttentionGroup{{Ranks: []uint32{1}, QueryHeadBounds: []uint32{0, 12}}}
		layer.AttentionGroupSize = 1
	}
	before := proto.Clone(l)
	out, err := ApplyDelta(l, &tangramv1.LayoutDelta{Renumber: []uint32{0, 1}, MembersChanged: true, Members: l.Members[1:],
		Dense: &tangramv1.DenseLayout{Ranks: []uint32{0}}}, 4)
	require.NoError(t, err)
	require.NoError(t, Validate(out, v))
	require.True(t, proto.Equal(before, l), "the base is not changed")
}

// Compares with a count page by page.
func TestPagesAreCountedOnce(t *testing.T) {
	const seed = 9
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	v := testView(t, 12, 4)
	for range 300 {
		var pieces []Piece
		touched := map[[2]uint64]bool{}
		for range r.IntN(12) {
			p := Piece{Bank: uint32(r.IntN(3)), Offset: uint64(r.IntN(120)) * 512, Bytes: uint64(1+r.IntN(18)) * 512}
			pieces = append(pieces, p)
			for at := p.Offset; at < p.Offset+p.Bytes; at += 512 {
				touched[[2]uint64{uint64(p.Bank), at / v.Proto.PageBytes}] = true
			}
		}
		before := slices.Clone(pieces)
		require.Equal(t, len(touched), int(Pages(pieces, v)), "%v", pieces)
		require.Equal(t, before, pieces, "they keep their order")
	}
}

// Four functions agree on a rank's pieces.
func TestRankContentsAreConsistent(t *testing.T) {
	v := testView(t, 12, 4) // 6 granules of 600 bytes to an expert
	l := sound(v)
	l.Revision, l.Dense.Ranks = "rev", []uint32{1}
	l.Layers[1].BankOffset = 1
	require.Equal(t, uint32(0), Bank(l.Layers[0], v))
	require.Equal(t, uint32(2), Bank(l.Layers[1], v))
	l.Layers[0].BankOffset = 1
	require.Equal(t, uint32(1), Bank(l.Layers[0], v))
	require.Equal(t, []int{0, 1, -1, -1}, []int{RankOf(l, "a"), RankOf(l, "b"), RankOf(l, "c"), RankOf(nil, "a")})
	require.Equal(t, []bool{false, true}, []bool{HoldsDense(l, 0), HoldsDense(l, 1)})
	want := &tangramv1.Inventory{Revision: "rev", Layer: []uint32{0, 0, 1, 1}, Bank: []uint32{1, 1, 2, 2}, Slot: []uint32{0, 2, 0, 2},
		Expert: []uint32{0, 2, 0, 2}, GranuleStart: []uint32{0, 0, 0, 0}, GranuleCount: []uint32{6, 6, 6, 6}}
	require.True(t, proto.Equal(want, InventoryOf(l, v, 0)), "%v", InventoryOf(l, v, 0))
	want = &tangramv1.Inventory{Revision: "rev", Dense: true, Layer: []uint32{0, 1}, Bank: []uint32{1, 2}, Slot: []uint32{0, 0},
		Expert: []uint32{1, 1}, GranuleStart: []uint32{0, 0}, GranuleCount: []uint32{6, 6}}
	require.True(t, proto.Equal(want, InventoryOf(l, v, 1)), "%v", InventoryOf(l, v, 1))
	require.Equal(t, 2*v.ExpertPitch, Pieces(l, v, 0)[1].Offset)
	for rank := range uint32(2) {
		steady := Pages(Pieces(l, v, rank), v) * 4096
		if rank == 1 {
			steady += 4096 // 100 bytes of dense weights
		}
		require.Equal(t, steady, SteadyBytes(l, v, rank))
	}
	first, last := KVHeadsOf(l.Layers[0].Attention[0], 0, v) // three query heads to a KV head
	require.Equal(t, [2]uint32{0, 2}, [2]uint32{first, last})
	first, last = KVHeadsOf(l.Layers[0].Attention[0], 1, v)
	require.Equal(t, [2]uint32{1, 4}, [2]uint32{first, last})
}

// A repair's delta: a member is removed without having left; its layers are replaced whole.
func TestApplyDeltaDoesNotRenumberReplacedLayers(t *testing.T) {
	v := testView(t, 12, 4)
	l := sound(v)
	next := &tangramv1.LayerLayout{Layer: 0, ExpertGroupSize: 1, AttentionGroupSize: 1,
		Experts:   []*tangramv1.ExpertGroup{{Ranks: []uint32{0}, Slots: []uint32{1, 2, 3}}},
		Attention: []*tangramv1.AttentionGroup{{Ranks: []uint32{0}, QueryHeadBounds: []uint32{0, 12}}}}
	d := &tangramv1.LayoutDelta{Renumber: []uint32{0, 1}, MembersChanged: true, Members: l.Members[1:],
		Dense: &tangramv1.DenseLayout{Ranks: []uint32{0}}, Layers: []*tangramv1.LayerLayout{next}}
	_, err := ApplyDelta(l, d, 4)
	require.ErrorContains(t, err, "layer 1: leaving rank 0 still owns experts")
	second := proto.CloneOf(next)
	second.Layer = 1
	d.Layers = append(d.Layers, second)
	out, err := ApplyDelta(l, d, 4)
	require.NoError(t, err)
	require.NoError(t, Validate(out, v))
	require.Equal(t, []uint32{0}, out.Layers[0].Experts[0].Ranks)
}

func FuzzValidate(f *testing.F) {
	v := testView(f, 12, 4)
	wire, err := proto.Marshal(sound(v))
	require.NoError(f, err)
	f.Add(wire)
	doubled := sound(v)
	for _, layer := range doubled.Layers {
		layer.ExpertGroupSize, layer.Experts = 3, []*tangramv1.ExpertGroup{{Ranks: []uint32{1, 0, 1}, Slots: []uint32{3, 0, 1, 2}}}
	}
	require.NoError(f, Validate(doubled, v))
	wire, err = proto.Marshal(doubled)
	require.NoError(f, err)
	f.Add(wire)
	f.Fuzz(func(t *testing.T, wire []byte) {
		l := &tangramv1.Layout{}
		if proto.Unmarshal(wire, l) != nil || Validate(l, v) != nil {
			return
		}
		for rank := range l.Members { // what Validate accepts must be safe to use
			for _, p := range Pieces(l, v, uint32(rank)) {
				require.LessOrEqual(t, p.Offset+p.Bytes, v.BankPitch)
			}
		}
	})
}
