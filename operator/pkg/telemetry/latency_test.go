package telemetry

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

func TestBuckets(t *testing.T) {
	for b := int32(firstBucket); b <= lastBucket; b++ {
		require.Equal(t, b, Bucket(Bound(b)), "a bound is in its own bucket")
		if b < lastBucket {
			require.Equal(t, b+1, Bucket(math.Nextafter(Bound(b), math.Inf(1))))
		}
	}
	for _, none := range []float64{0, -1, math.NaN(), 1e-9} {
		require.EqualValues(t, firstBucket, Bucket(none))
	}
	require.EqualValues(t, lastBucket, Bucket(math.Inf(1)))
	sure, maybe := within(firstBucket, 1e-9)
	require.False(t, sure)
	require.True(t, maybe, "whatever is shorter than all bounds is in the first one")
	sure, maybe = within(lastBucket, 1e9)
	require.False(t, sure, "whatever is longer than all bounds is in the last one")
	require.True(t, maybe)
}

// answer is a client's response.
type answer struct {
	first, rest float64
	tokens      int
}

func drawn(r *rand.Rand) answer {
	return answer{math.Exp(r.NormFloat64()*2 - 1), math.Exp(r.NormFloat64()*2 + 1), 1 + r.IntN(100)}
}

// The true number of responses within an SLO is in Attainment's range; an SLO at a bucket's bound leaves none unsure.
func TestAttainmentContainsTrueValue(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		all := make([]answer, 1+r.IntN(300))
		l := Latencies{}
		for i := range all {
			all[i] = drawn(r)
			l.Note(all[i].first, all[i].rest, all[i].tokens)
		}
		slo := SLO{TTFT: math.Exp(r.NormFloat64()), TPOT: math.Exp(r.NormFloat64() - 3)}
		switch r.IntN(4) {
		case 0:
			slo.TTFT = 0
		case 1:
			slo.TPOT = 0
		case 2:
			slo = SLO{TTFT: Bound(int32(r.IntN(40) - 20)), TPOT: Bound(int32(r.IntN(40) - 40))}
		}
		require.NoError(t, slo.Check())
		truth, tokens := uint64(0), uint64(0)
		for _, a := range all {
			if (slo.TTFT == 0 || a.first <= slo.TTFT) && (slo.TPOT == 0 || a.tokens == 1 || a.rest/float64(a.tokens-1) <= slo.TPOT) {
				truth++
				tokens += uint64(a.tokens)
			}
		}
		got := l.Attainment(slo)
		require.EqualValues(t, len(all), got.Answers)
		require.LessOrEqual(t, got.Within, truth)
		require.GreaterOrEqual(t, got.Within+got.Unsure, truth)
		require.LessOrEqual(t, got.Tokens, tokens)
		if slo.TTFT > 0 && Bound(Bucket(slo.TTFT)) == slo.TTFT && slo.TPOT > 0 && Bound(Bucket(slo.TPOT)) == slo.TPOT {
			require.Zero(t, got.Unsure)
			require.Equal(t, truth, got.Within)
			require.Equal(t, tokens, got.Tokens)
		}
		share, ok := got.Share()
		require.True(t, ok)
		require.True(t, share >= 0 && share <= 1)
	}
	_, ok := Attainment{}.Share()
	require.False(t, ok)
	share, ok := Attainment{Answers: 10, Within: 4, Unsure: 3}.Share()
	require.True(t, ok)
	require.InDelta(t, .55, share, 1e-12)
}

func TestQuantiles(t *testing.T) {
	l := Latencies{}
	for i := range 100 {
		l.Note(float64(i+1)/100, 3, 2)
	}
	for _, q := range []float64{.01, .5, .9, .99, 1} {
		got, ok := l.FirstToken(q)
		require.True(t, ok)
		require.GreaterOrEqual(t, got, q)
		require.LessOrEqual(t, got, q*1.1)
	}
	got, ok := l.BetweenTokens(.5)
	require.True(t, ok)
	require.InDelta(t, Bound(Bucket(3)), got, 0)
	_, ok = Latencies{{One: true}: {1, 1}}.BetweenTokens(.5)
	require.False(t, ok)
	least, ok := l.FirstToken(0)
	require.True(t, ok)
	require.InDelta(t, Bound(Bucket(.01)), least, 0)
	_, ok = Latencies{}.FirstToken(.5)
	require.False(t, ok)
	for _, q := range []float64{math.NaN(), -.1, 1.1} {
		_, ok = l.FirstToken(q)
		require.False(t, ok, q)
	}
}

func TestBadSLOs(t *testing.T) {
	for _, s := range []SLO{{TTFT: 1}, {TPOT: 1, Share: 1}, {TTFT: 1, TPOT: 1, Share: .9}} {
		require.NoError(t, s.Check())
	}
	for _, s := range []SLO{{}, {TTFT: -1}, {TTFT: math.NaN(), TPOT: 1}, {TPOT: math.Inf(1)}, {TTFT: 1, Share: 2}, {TTFT: 1, Share: math.NaN()}, {TTFT: 1, Share: -.1}} {
		require.Error(t, s.Check(), "%+v", s)
	}
}

// Merging is addition, in any parts and order.
func TestMergeAddsCounts(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	whole := Latencies{}
	parts := []Latencies{{}, {}, {}}
	for range 2000 {
		a := drawn(r)
		whole.Note(a.first, a.rest, a.tokens)
		parts[r.IntN(3)].Note(a.first, a.rest, a.tokens)
	}
	whole.Note(1e9, 1e9, 2)
	parts[0].Note(1e9, 1e9, 2)
	require.True(t, slices.IsSortedFunc(whole.Proto(), func(a, b *tangramv1.LatencyCell) int {
		return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(a.Between, b.Between))
	}), "the same wire for the same answers")
	for _, order := range [][]int{{0, 1, 2}, {2, 0, 1}, {1, 2, 0}} {
		merged := Latencies{}
		for _, i := range order {
			wire, err := read(parts[i].Proto())
			require.NoError(t, err)
			merged.Merge(wire)
		}
		require.Equal(t, whole, merged)
	}
}
