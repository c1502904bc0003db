package planner_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
)

// Headroom's numbers for each loss equal those of the actual Repair.
func TestHeadroomMatchesRepair(t *testing.T) {
	r := rand.New(rand.NewPCG(seed, 2))
	for range worlds(60) {
		v := view(t, shape(4+uint32(r.IntN(30)), 4+uint32(r.IntN(12)), 1+uint32(r.IntN(5)), uint64(r.IntN(2)*40)))
		n := 2 + r.IntN(3)
		b := at(t, v, n, randomShape(r, v, uint32(n)))
		if r.IntN(2) == 0 && n > 2 { // also of a repaired world
			if b.kill(r, 1); true {
				if _, err := b.repair(); !planner.IsBeyondRepair(err) {
					b.repaired(t)
				}
			}
		}
		b.dead = map[string]bool{}
		in := planner.HeadroomInput{Geometry: v, Layout: b.now}
		peak := map[string]uint64{} // of any loss
		beyond := false
		for rank, m := range b.now.Members {
			b.dead = map[string]bool{m.Id: true}
			if len(b.now.Members) == 1 {
				beyond = true
				continue
			}
			result, err := b.repair()
			if planner.IsBeyondRepair(err) {
				beyond = true
				continue
			}
			require.NoError(t, err, "rank %d", rank)
			for _, part := range result.Plan.Flips[0].Parts {
				require.Equal(t, part.SteadyBytes, part.PeakBytes)
				peak[part.Member] = max(peak[part.Member], part.PeakBytes)
			}
		}
		for _, m := range b.now.Members {
			in.Members = append(in.Members, planner.Member{Member: m, MemoryBytes: peak[m.Id]})
		}
		got, err := planner.Headroom(in)
		require.NoError(t, err)
		require.Equal(t, !beyond, got.Enough, "%+v", got)
		if beyond {
			require.NotEmpty(t, got.Worst.Beyond)
			continue
		}
		in.Members[0].MemoryBytes--
		got, err = planner.Headroom(in)
		require.NoError(t, err)
		require.False(t, got.Enough)
		require.Equal(t, uint64(1), got.Worst.Short)
		short := 0
		for _, s := range got.Worst.Survivors {
			require.NotEqual(t, got.Worst.Member, s.Member)
			if s.ShortBytes > 0 {
				short++
				require.Equal(t, b.now.Members[0].Id, s.Member)
				require.Equal(t, peak[s.Member], s.NeedBytes)
				require.Equal(t, uint64(1), s.KVTokens)
			}
		}
		require.Equal(t, 1, short)
	}
}

func TestHeadroomReportsTokensAndIrreparableLosses(t *testing.T) {
	v := view(t, shape(8, 8, 2, 0)) // 4 KV heads of 64 bytes a token and layer
	for _, c := range []struct {
		s     layout.Shape
		token uint64
	}{{expertShape, 2 * 4 * 64}, {tensorShape, 2 * 1 * 64}} {
		b := at(t, v, 4, c.s)
		in := planner.HeadroomInput{Geometry: v, Layout: b.now}
		for rank, m := range b.now.Members {
			in.Members = append(in.Members, planner.Member{Member: m, MemoryBytes: layout.SteadyBytes(b.now, v, uint32(rank))})
		}
		got, err := planner.Headroom(in)
		require.NoError(t, err)
		require.False(t, got.Enough)
		for _, s := range got.Worst.Survivors {
			require.Equal(t, max(s.NeedBytes, s.MemoryBytes)-s.MemoryBytes, s.ShortBytes)
			require.Equal(t, (s.ShortBytes+c.token-1)/c.token, s.KVTokens)
		}
		require.Positive(t, got.Worst.Short)
		require.Positive(t, got.Worst.BringBytes)
		in.Members = nil
		got, err = planner.Headroom(in)
		require.NoError(t, err)
		require.True(t, got.Enough, "pools that nobody reports are not checked")
	}
	b := at(t, v, 1, expertShape)
	got, err := planner.Headroom(planner.HeadroomInput{Geometry: v, Layout: b.now})
	require.NoError(t, err)
	require.False(t, got.Enough)
	require.Equal(t, "no other rank exists", got.Worst.Beyond)
	_, err = planner.Headroom(planner.HeadroomInput{Geometry: v})
	require.ErrorContains(t, err, "no layout is active yet")
}

// The worst loss is the one that leaves the least, for any rank.
func TestWorstLoss(t *testing.T) {
	v := view(t, shape(12, 8, 2, 0))
	b := at(t, v, 4, expertShape)
	for small := range 4 { // whose pool is the smallest: the worst loss is that of another rank
		in := planner.HeadroomInput{Geometry: v, Layout: b.now}
		for rank, m := range b.now.Members {
			memory := uint64(1 << 30)
			if rank == small {
				memory = 1 << 20
			}
			in.Members = append(in.Members, planner.Member{Member: m, MemoryBytes: memory})
		}
		got, err := planner.Headroom(in)
		require.NoError(t, err)
		require.True(t, got.Enough)
		require.NotEqualValues(t, small, got.Worst.Rank)
		require.NotEmpty(t, got.Worst.Survivors)
		in.Members[small].MemoryBytes = layout.SteadyBytes(b.now, v, uint32(small))
		got, err = planner.Headroom(in)
		require.NoError(t, err)
		require.False(t, got.Enough, "whichever loss comes last")
	}
	// A rank without heads frees no tokens.
	w := &world{v: v}
	_, err := w.to([]string{"a", "b"}, expertShape)
	require.NoError(t, err)
	joined, err := w.to([]string{"a", "b", "c"}, expertShape)
	require.NoError(t, err)
	l := joined.Layouts[0]
	got, err := planner.Headroom(planner.HeadroomInput{Geometry: v, Layout: l, Members: []planner.Member{{Member: l.Members[2], MemoryBytes: 4096}}})
	require.NoError(t, err)
	require.False(t, got.Enough)
	last := got.Worst.Survivors[len(got.Worst.Survivors)-1]
	require.Positive(t, last.ShortBytes)
	require.Zero(t, last.KVTokens)
}
