package walk

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
	"tangram.dev/tests/internal/worlds"
)

// Of the tiny model.
const (
	tinyLayers  = 3
	tinyExperts = 10
)

// placement has the experts of every layer, ascending: [MoE layer][rank].
type placement [][][]uint32

// everyLayer repeats a placement for all layers.
func everyLayer(ranks ...[]uint32) placement {
	return slices.Repeat(placement{ranks}, tinyLayers)
}

// randomPlacement places every expert on n ranks, some on several, with uneven ranks.
func randomPlacement(random *rand.Rand, n int) placement {
	out := make(placement, tinyLayers)
	for l := range out {
		out[l] = make([][]uint32, n)
		give := func(rank int, e uint32) {
			if !slices.Contains(out[l][rank], e) {
				out[l][rank] = append(out[l][rank], e)
			}
		}
		for rank := range n { // at least one each
			give(rank, uint32(random.IntN(tinyExperts)))
		}
		for e := range uint32(tinyExperts) {
			for range 1 + random.IntN(3) {
				give(random.IntN(n), e)
			}
		}
		for rank := range n {
			slices.Sort(out[l][rank])
		}
	}
	return out
}

func place(t *testing.T, w *harness.World, p placement) *harness.Record {
	t.Helper()
	record, err := w.ApplyPlacement(t.Context(), len(p[0]), p)
	require.NoError(t, err, w.Died())
	return record
}

// requirePlaced: the active layout has this placement, and each rank has verified exactly its pieces.
func requirePlaced(t *testing.T, w *harness.World, want placement) {
	t.Helper()
	for _, s := range status(t, w) {
		if s.Layout != nil { // otherwise none of its ranks is in the world
			require.Equal(t, [][][]uint32(want), layout.PlacementOf(s.Layout))
		}
		v, err := geometry.New(s.Geometry)
		require.NoError(t, err)
		for _, r := range s.Ranks {
			if !r.InWorld {
				require.Empty(t, r.Inventory.GetExpert(), "%s is in no layout", r.Member.Id)
				continue
			}
			held := make([][]uint32, len(want))
			for i, e := range r.Inventory.Expert {
				at := v.Ordinal(r.Inventory.Layer[i])
				held[at] = append(held[at], e)
			}
			for at := range held {
				slices.Sort(held[at])
				require.Equal(t, want[at][r.Rank], held[at], "entry %d of %s", at, r.Member.Id)
			}
		}
	}
}

// requireBound: the minimum of bytes moved, all from ranks, and no more than planned; the plan counts a joiner's dense
// weights with the gaps between tensors.
func requireBound(t *testing.T, r *harness.Record) {
	t.Helper()
	require.Equal(t, r.ExpertBoundBytes, r.ExpertBytes)
	require.Positive(t, r.PeakBytes)
	require.LessOrEqual(t, r.PeakBytes, r.PlannedPeakBytes, "no rank has more memory in use than the plan said")
	require.Zero(t, r.Bytes.Checkpoint)
	moved := r.Bytes.TCP + r.Bytes.Shared
	if r.DenseBytes == 0 {
		require.Equal(t, r.ExpertBytes, moved)
		return
	}
	require.Greater(t, moved, r.ExpertBytes)
	require.LessOrEqual(t, moved, r.ExpertBytes+r.DenseBytes)
}

// expertBytes is the size of one expert of one layer.
func expertBytes(t *testing.T, w *harness.World) uint64 {
	t.Helper()
	v, err := geometry.New(status(t, w)[0].Geometry)
	require.NoError(t, err)
	return v.ExpertBytes
}

// Experts change places, get replicas and lose them, while requests stream; also between different numbers of ranks and
// modes.
func TestPlacements(t *testing.T) {
	const seed = 3
	w := startTiny(t, harness.Options{Pods: []int{2, 2, 1}})
	apply(t, w, 3, "ExpertParallel")
	tokens, size := answers(t, w), int64(expertBytes(t, w))
	trace := newTrace(t, seed, 20*time.Second)
	halt, played := make(chan struct{}), make(chan []*load.Result, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	go func() { played <- client(w).Play(ctx, trace, 4, halt) }()

	random := rand.New(rand.NewPCG(seed, 0))
	const free = -1 // any number that the plan chooses
	for _, s := range []struct {
		name   string
		to     placement // nil: the mode's placement
		ranks  int
		mode   string
		brings int64 // experts to fetch, over all layers
	}{
		{"in order", everyLayer([]uint32{0, 1, 2, 3}, []uint32{4, 5, 6}, []uint32{7, 8, 9}), 3, "", free},
		{"one swap a layer", everyLayer([]uint32{0, 1, 2, 9}, []uint32{4, 5, 6}, []uint32{3, 7, 8}), 3, "", 6},
		{"a ring", everyLayer([]uint32{0, 1, 6, 9}, []uint32{4, 5, 7}, []uint32{2, 3, 8}), 3, "", 9},
		{"one everywhere, one twice", everyLayer([]uint32{0, 1, 6, 9}, []uint32{0, 1, 4, 5, 7}, []uint32{0, 2, 3, 8}), 3, "", 9},
		{"the copy stays, the first one goes", everyLayer([]uint32{6, 9}, []uint32{0, 1, 4, 5, 7}, []uint32{0, 2, 3, 8}), 3, "", 0},
		{"one layer only", placement{
			{{5, 6, 9}, {0, 1, 4, 5, 7}, {0, 2, 3, 8}},
			{{6, 9}, {0, 1, 4, 5, 7}, {0, 2, 3, 8}},
			{{6, 9}, {0, 1, 4, 5, 7}, {0, 2, 3, 8}}}, 3, "", 1},
		{"all everywhere", everyLayer([]uint32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, []uint32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, []uint32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}), 3, "", 3*30 - 3*11 - 1},
		{"random", randomPlacement(random, 3), 3, "", 0},
		{"random again", randomPlacement(random, 3), 3, "", free},
		{"plain", nil, 3, "ExpertParallel", free},
		{"random, more ranks", randomPlacement(random, 5), 5, "", free},
		{"random, fewer ranks", randomPlacement(random, 2), 2, "", free},
		{"TensorParallel from copies", nil, 2, "TensorParallel", free},
		{"copies from TensorParallel", randomPlacement(random, 2), 2, "", free},
		{"copies, all ranks", randomPlacement(random, 5), 5, "", free},
		{"TensorParallel of fewer ranks from copies", nil, 3, "TensorParallel", free},
		{"copies of more ranks from TensorParallel", randomPlacement(random, 4), 4, "", free},
		{"plain of more ranks from copies", nil, 5, "ExpertParallel", free},
		{"one rank", nil, 1, "ExpertParallel", free},
	} {
		t.Run(s.name, func(t *testing.T) {
			var record *harness.Record
			if s.to == nil {
				record = apply(t, w, s.ranks, s.mode)
			} else {
				record = place(t, w, s.to)
				requirePlaced(t, w, s.to)
			}
			requireBound(t, record)
			if s.brings != free {
				require.EqualValues(t, s.brings*size, record.ExpertBytes)
			}
			audit(t, w, s.ranks)
			requireSame(t, answers(t, w), tokens)
			t.Logf("%d expert bytes, %d flips", record.ExpertBytes, record.PlannedFlips)
		})
	}
	close(halt)
	walked := <-played
	require.NotEmpty(t, walked)
	requireSame(t, walked, client(w).Repeat(t.Context(), trace, len(walked), 8))
	t.Logf("%d requests", len(walked))
}

// Entries of a placement are MoE layers; not every layer is one.
func TestPlacementsWithDenseLayer(t *testing.T) {
	odd, err := harness.Checkpoint(t.Context(), worlds.Root, "odd") // 7 experts; layer 1 of 4 has none
	require.NoError(t, err)
	w := start(t, harness.Options{Pods: []int{2, 1}, Checkpoint: odd, Granule: 8, Memory: 64 << 20, KV: 8 << 20})
	apply(t, w, 3, "ExpertParallel")
	tokens := answers(t, w)
	p := placement{{{0, 1, 6}, {2, 3, 6}, {4, 5}}, {{0, 4}, {3, 4}, {1, 2, 4, 5, 6}}, {{6}, {4, 5}, {0, 1, 2, 3}}}
	requireBound(t, place(t, w, p))
	requirePlaced(t, w, p)
	audit(t, w, 3)
	requireSame(t, answers(t, w), tokens)
	before := status(t, w)
	_, err = w.ApplyPlacement(t.Context(), 3, placement{p[0], {{0, 4}, {3}, {1, 2, 4, 6}}, p[2]})
	require.ErrorContains(t, err, "layer 2 (entry 1 of the placement): no rank has expert 5")
	requireUnmoved(t, status(t, w), before)
	apply(t, w, 3, "TensorParallel")
	requireBound(t, place(t, w, p))
	requirePlaced(t, w, p)
	audit(t, w, 3)
	requireSame(t, answers(t, w), tokens)
}

// loads returns the expert load of members, by id: tokens by (layer, expert).
func loads(t *testing.T, w *harness.World) map[string][]uint64 {
	t.Helper()
	out := map[string][]uint64{}
	for pod := range w.Agents() {
		reply, err := dial(t, w, pod, w.CertificateDir(), "driver").ExpertLoad(t.Context(), &tangramv1.ExpertLoadRequest{World: "demo"})
		require.NoError(t, err)
		for _, r := range reply.Ranks {
			out[r.Member] = r.Tokens
		}
	}
	return out
}

// A token counts once for an expert, whatever its number of replicas, and counters only grow: the same requests add the
// same to each expert in every layout.
func TestExpertLoadIgnoresReplicas(t *testing.T) {
	// Cached prompt tokens are not computed again, and each home's cache depends on the layout.
	w := startTiny(t, harness.Options{Pods: []int{2, 1}, EngineFlags: []string{"--no-prefix-cache"}})
	apply(t, w, 3, "ExpertParallel")
	trace := newTrace(t, 7, time.Minute)
	ask := func() { // one at a time, because concurrent requests on one rank share their prefix
		for _, r := range client(w).Repeat(t.Context(), trace, 3, 1) {
			require.NoError(t, r.Err, w.Died())
		}
	}
	ask()
	was := loads(t, w)
	grown := func() []uint64 {
		now, sum := loads(t, w), make([]uint64, tinyLayers*tinyExperts)
		require.Len(t, now, len(was))
		for member, counters := range now {
			require.Len(t, counters, len(sum))
			for i, n := range counters {
				require.GreaterOrEqual(t, n, was[member][i], "expert %d of layer %d, %s", i%tinyExperts, i/tinyExperts, member)
				sum[i] += n - was[member][i]
			}
		}
		was = now
		return sum
	}
	require.Zero(t, slices.Max(grown()), "nobody asked for anything")
	ask()
	want := grown()
	for l := range tinyLayers {
		layer := want[l*tinyExperts : (l+1)*tinyExperts]
		require.NotZero(t, slices.Max(layer), "layer %d", l)
		require.Equal(t, total(want[:tinyExperts]), total(layer), "every layer routes all tokens, layer %d", l)
	}
	for _, p := range []placement{
		everyLayer([]uint32{0, 1, 2, 3}, []uint32{3, 4, 5, 6, 9}, []uint32{3, 7, 8, 9}),
		randomPlacement(rand.New(rand.NewPCG(1, 0)), 3),
		randomPlacement(rand.New(rand.NewPCG(2, 0)), 2),
	} {
		place(t, w, p)
		require.Zero(t, slices.Max(grown()), "a transition routes nothing")
		ask()
		require.Equal(t, want, grown())
	}
	apply(t, w, 3, "TensorParallel")
	ask()
	require.Equal(t, want, grown())
}

func total(of []uint64) (sum uint64) {
	for _, n := range of {
		sum += n
	}
	return sum
}

// A repair reads exactly the lost experts without another replica from the checkpoint; then the placement is restored.
func TestPodWithReplicasDies(t *testing.T) {
	for _, c := range []struct {
		name string
		p    placement
		only uint64 // experts that only rank 1 has, over all layers
	}{
		{"some have a copy", everyLayer([]uint32{0, 1, 2, 3}, []uint32{0, 3, 4, 5, 6}, []uint32{4, 7, 8, 9}), 6},
		{"all have a copy", everyLayer([]uint32{0, 1, 2, 3}, []uint32{0, 4, 5, 6}, []uint32{4, 5, 7, 8}, []uint32{6, 7, 8, 9}), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			ranks := len(c.p[0])
			a := startAlive(t, slices.Repeat([]int{1}, ranks), ranks, "ExpertParallel")
			a.keeper.Kill()
			a.keepPlacement(t, c.p)
			a.await(t, "the placement", func(d harness.Did) bool { return d.Did == "apply" && d.Error == "" })
			requirePlaced(t, a.World, c.p)
			dies := slices.IndexFunc(status(t, a.World), func(s *tangramv1.StatusResponse) bool { return s.Ranks[0].Rank == 1 })
			size := expertBytes(t, a.World)
			a.KillPod(dies)
			d := a.await(t, "a repair", repaired)
			require.Len(t, d.Record.Lost, 1)
			require.Equal(t, c.only*size, d.Record.Bytes.Checkpoint, "only what nobody else had")
			require.Zero(t, d.Record.Bytes.TCP+d.Record.Bytes.Shared, "nothing that a survivor serves moves")
			_, err := a.AddPod(t.Context(), 1)
			require.NoError(t, err)
			back := a.await(t, "the placement again", func(again harness.Did) bool {
				return again.Did == "apply" && again.Error == "" && again.Record.FromEpoch >= d.Record.Epoch
			})
			requireBound(t, &back.Record.Record)
			requirePlaced(t, a.World, c.p)
			a.end(t, ranks)
		})
	}
}

// A keeper starts a world with replicas from nothing.
func TestFirstLayoutWithReplicas(t *testing.T) {
	p := everyLayer([]uint32{0, 1, 2, 3, 4}, []uint32{0, 5, 6, 7, 8, 9})
	w := startTiny(t, harness.Options{Pods: []int{1, 1}})
	_, err := w.ApplyPlacement(t.Context(), 2, p)
	require.ErrorContains(t, err, "layer 0: a first layout with 11 copies of 10 experts: start with one of each, replicate then")
	keeper, err := w.KeepPlacement(2, p, nil)
	require.NoError(t, err)
	defer keeper.Kill()
	require.Eventually(t, func() bool {
		all := status(t, w)
		return reflect.DeepEqual(layout.PlacementOf(all[0].Layout), [][][]uint32(p)) && len(keeper.Did()) == 2
	}, 20*time.Second, 50*time.Millisecond)
	requirePlaced(t, w, p)
	audit(t, w, 2)
}

// An impossible placement is rejected with layer, rank, expert and file; nothing moves.
func TestInvalidPlacementsAreRejected(t *testing.T) {
	w := startTiny(t, harness.Options{Pods: []int{2}})
	good := everyLayer([]uint32{0, 1, 2, 3, 4}, []uint32{0, 5, 6, 7, 8, 9})
	apply(t, w, 2, "ExpertParallel")
	place(t, w, good)
	before, tokens := status(t, w), answers(t, w)
	with := func(layer, rank int, experts ...uint32) placement {
		p := everyLayer(slices.Clone(good[0])...)
		p[layer] = slices.Clone(p[layer])
		p[layer][rank] = append([]uint32{}, experts...)
		return p
	}
	for want, p := range map[string]placement{
		"layer 1: no rank has expert 3":                                with(1, 0, 0, 1, 2, 4),
		"layer 2, rank 1: expert 10 of 10: the last one is 9":          with(2, 1, 5, 6, 7, 8, 9, 10),
		"layer 0, rank 0: expert 4 twice":                              with(0, 0, 0, 1, 2, 3, 4, 4),
		"layer 0: rank 1 has no expert":                                with(0, 1),
		"a placement of 2 layers for a model with 3 layers of experts": good[:2],
		"a placement of 4 layers for a model with 3 layers of experts": append(slices.Clone(good), good[0]),
	} {
		t.Run(want, func(t *testing.T) {
			_, err := w.ApplyPlacement(t.Context(), 2, p)
			require.ErrorContains(t, err, "--placement "+filepath.Join(w.Dir(), "placement.json")+": ")
			require.ErrorContains(t, err, want)
			require.ErrorContains(t, err, "exit status 2")
			requireUnmoved(t, status(t, w), before)
		})
	}
	_, err := w.ApplyPlacement(t.Context(), 1, good)
	require.ErrorContains(t, err, "placement has 2 ranks; want 1, the value of --ranks")
	requireSame(t, answers(t, w), tokens)
	requireUnmoved(t, status(t, w), before)
}

// Replicas that do not fit in the pool are rejected with the numbers; those that fit are accepted.
func TestReplicasBeyondMemoryAreRejected(t *testing.T) {
	plain := everyLayer([]uint32{0, 1, 2, 3, 4}, []uint32{5, 6, 7, 8, 9})
	all := []uint32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	roomy := startTiny(t, harness.Options{Pods: []int{2}})
	apply(t, roomy, 2, "ExpertParallel")
	mapped := func(p placement) uint64 {
		place(t, roomy, p)
		return max(status(t, roomy)[0].Ranks[0].MemoryMapped, status(t, roomy)[0].Ranks[1].MemoryMapped)
	}
	none, one, most := mapped(plain), mapped(everyLayer([]uint32{0, 1, 2, 3, 4, 5}, []uint32{0, 5, 6, 7, 8, 9})), mapped(everyLayer(all, all))
	require.Less(t, one, most)
	require.Less(t, none, one)
	roomy.Stop()

	w := startTiny(t, harness.Options{Pods: []int{2}, Memory: one})
	place(t, w, plain)
	before, tokens := status(t, w), answers(t, w)
	_, err := w.ApplyPlacement(t.Context(), 2, everyLayer(all, all))
	require.ErrorContains(t, err, fmt.Sprintf("its pool has %d", before[0].Ranks[0].MemoryBytes))
	require.ErrorContains(t, err, fmt.Sprint(most))
	requireUnmoved(t, status(t, w), before)
	requireSame(t, answers(t, w), tokens)
	place(t, w, everyLayer([]uint32{0, 1, 2, 3, 4, 5}, []uint32{0, 5, 6, 7, 8, 9}))
	audit(t, w, 2)
	requireSame(t, answers(t, w), tokens)
}
