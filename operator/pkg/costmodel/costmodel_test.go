package costmodel

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/kernels"
)

func view(t testing.TB, model string) *geometry.View {
	t.Helper()
	all, err := geometry.Public()
	require.NoError(t, err)
	for _, g := range all {
		if g.Model == model {
			v, err := geometry.New(g)
			require.NoError(t, err)
			return v
		}
	}
	t.Fatalf("no geometry %q", model)
	return nil
}

func prior(t testing.TB, engine string, s kernels.Shape) *kernels.Step {
	t.Helper()
	table, err := kernels.Open("Qwen3-235B-A22B")
	require.NoError(t, err)
	out, err := kernels.NewStep(table, view(t, "Qwen3-235B-A22B"), engine, "power_law_1.2", s)
	require.NoError(t, err)
	return out
}

// The prior is another engine's table than the truth, and steps have 10 % noise.
func TestObserveLearnsOtherEngine(t *testing.T) {
	for _, s := range []kernels.Shape{kernels.Expert(8), kernels.Tensor(8)} {
		m := New(Options{}, prior(t, "sglang", s))
		truth := New(Options{}, prior(t, "trtllm", s))
		random := rand.New(rand.NewPCG(1, 2))
		_, known, err := m.Step(s, Work{Decode: 64, Context: 2048})
		require.NoError(t, err)
		require.False(t, known, "nothing was measured yet")
		worst := 0.0
		for i := range 3000 {
			w := Work{Decode: 1 << random.IntN(10), Context: 500 + random.IntN(3000)}
			want, err := truth.Prior(s, w)
			require.NoError(t, err)
			if i > 2000 {
				got, known, err := m.Step(s, w)
				require.NoError(t, err)
				require.True(t, known)
				worst = max(worst, math.Abs(got.Seconds/want-1))
			}
			require.NoError(t, m.Observe(s, w, want*(1+.1*random.NormFloat64())))
		}
		require.Less(t, worst, .2, "%v", s)
		_, known, err = m.Step(s, Work{Decode: 64, Context: 2048, Prefill: 4096})
		require.NoError(t, err)
		require.False(t, known, "no step with a prompt was measured")
	}
}

func TestObserveForgetsOldSteps(t *testing.T) {
	s := kernels.Tensor(8)
	m := New(Options{Memory: 300}, prior(t, "vllm", s))
	w := Work{Decode: 64, Context: 2048}
	base, err := m.Prior(s, w)
	require.NoError(t, err)
	for _, factor := range []float64{1, 1.5, .8} {
		for range 3000 {
			require.NoError(t, m.Observe(s, w, base*factor))
		}
		got, _, err := m.Step(s, w)
		require.NoError(t, err)
		require.InEpsilon(t, base*factor, got.Seconds, .06)
	}
}

func TestObserveRejectsInvalidSteps(t *testing.T) {
	s := kernels.Tensor(8)
	m := New(Options{}, prior(t, "vllm", s))
	w := Work{Decode: 8, Context: 100}
	before, _, err := m.Step(s, w)
	require.NoError(t, err)
	for _, seconds := range []float64{math.NaN(), math.Inf(1), 0, -1} {
		require.Error(t, m.Observe(s, w, seconds))
	}
	require.Error(t, m.Observe(s, Work{}, 1))
	require.Error(t, m.Observe(s, Work{Decode: -1, Prefill: 3}, 1))
	require.Error(t, m.Observe(kernels.Expert(8), w, 1))
	after, _, err := m.Step(s, w)
	require.NoError(t, err)
	require.Equal(t, before, after)
}

func TestBudget(t *testing.T) {
	m := Memory{RankBytes: 141e9, SpareBanks: 2, GraphBytes: 2e9, CommunicatorBytes: 1e9}
	v := view(t, "Qwen3-235B-A22B")
	ep, err := m.Budget(v, kernels.Expert(8))
	require.NoError(t, err)
	tp, err := m.Budget(v, kernels.Tensor(8))
	require.NoError(t, err)
	require.Equal(t, uint64(192512), ep.TokenBytes)
	require.Equal(t, uint64(192512/4), tp.TokenBytes, "4 KV heads on 8 ranks: each rank holds one, twice there")
	require.Less(t, tp.WorldTokens, ep.WorldTokens)
	for _, b := range []Budget{ep, tp} {
		var all uint64
		for _, i := range b.Items {
			all += i.Bytes
		}
		require.Equal(t, m.RankBytes, all)
	}
	m.Redundant = 8
	more, err := m.Budget(v, kernels.Expert(8))
	require.NoError(t, err)
	require.Equal(t, Item{"redundant experts", v.ExpertBytes * (94 + 2)}, more.Items[len(more.Items)-2], "a copy on each rank in each layer and spare bank")
	require.Equal(t, ep.Items[len(ep.Items)-1].Bytes-v.ExpertBytes*96, more.Items[len(more.Items)-1].Bytes, "KV has that less")
	same, err := m.Budget(v, kernels.Tensor(8))
	require.NoError(t, err)
	require.Equal(t, tp, same, "each rank has a part of every expert: there is nothing to copy")
	m.Redundant, m.DenseBytes = 0, 12e9
	for _, shape := range []kernels.Shape{kernels.Expert(8), kernels.Tensor(8)} {
		b, err := m.Budget(v, shape)
		require.NoError(t, err)
		require.Equal(t, Item{"dense weights", 12e9}, b.Items[1], "agents hold them on each rank")
	}
	m.DenseBytes, m.RankBytes = 0, 192e9
	mla := view(t, "DeepSeek-V3/R1/V3.1")
	ep, err = m.Budget(mla, kernels.Expert(8))
	require.NoError(t, err)
	tp, err = m.Budget(mla, kernels.Tensor(8))
	require.NoError(t, err)
	require.Equal(t, ep.TokenBytes, tp.TokenBytes, "a latent is not split")
	_, err = m.Budget(v, kernels.Expert(2))
	require.ErrorContains(t, err, "experts")
	_, err = m.Budget(v, kernels.Shape{Ranks: 8, ExpertGroup: 3, AttentionGroup: 1})
	require.ErrorContains(t, err, "divide")
}

func TestStall(t *testing.T) {
	r := Rates{BytesPerSecond: 100, FlipSeconds: .5, Hidden: .5}
	stall, lost := r.Stall(Transition{BusiestBytes: 400, Flips: 3, TokenBytes: 2}, 50, 10)
	require.InDelta(t, 2+1.5+1, stall, 1e-12)
	require.InDelta(t, 45, lost, 1e-9)
	require.NoError(t, r.Check())
	for _, bad := range []Rates{{}, {BytesPerSecond: math.NaN()}, {BytesPerSecond: 1, Hidden: 2}, {BytesPerSecond: math.Inf(1)}, {BytesPerSecond: 1, FlipSeconds: -1}} {
		require.Error(t, bad.Check(), "%+v", bad)
	}
}

// An unmeasured width gets the correction of the nearest measured one: 4 is equally near to 1 and 8, and takes the
// wider one's. Steps with prompts do not lend to those without, nor one mode to another. A measured width borrows
// nothing.
func TestBorrowed(t *testing.T) {
	var priors []*kernels.Step
	for _, ranks := range []int{2, 4, 8} {
		priors = append(priors, prior(t, "sglang", kernels.Expert(ranks)), prior(t, "sglang", kernels.Tensor(ranks)))
	}
	m := New(Options{}, priors...)
	w, prompt := Work{Decode: 64, Context: 2048}, Work{Decode: 64, Context: 2048, Prefill: 512}
	factor := func(s kernels.Shape, w Work) float64 {
		e, _, err := m.Borrowed(s, w)
		require.NoError(t, err)
		base, err := m.Prior(s, w)
		require.NoError(t, err)
		return e.Seconds / base
	}
	measure := func(s kernels.Shape, w Work, factor float64) {
		base, err := m.Prior(s, w)
		require.NoError(t, err)
		for range 200 {
			require.NoError(t, m.Observe(s, w, base*factor))
		}
	}
	require.InDelta(t, 1, factor(kernels.Expert(4), w), 1e-12, "nothing is known")
	measure(kernels.Expert(2), w, 1.3)
	require.InDelta(t, 1.3, factor(kernels.Expert(4), w), .02)
	require.InDelta(t, 1.3, factor(kernels.Expert(8), w), .02)
	measure(kernels.Expert(8), w, .8)
	require.InDelta(t, .8, factor(kernels.Expert(4), w), .02, "as near as 2, and wider")
	require.InDelta(t, 1.3, factor(kernels.Expert(2), w), .02)
	require.InDelta(t, 1, factor(kernels.Expert(4), prompt), 1e-12)
	require.InDelta(t, 1, factor(kernels.Tensor(4), w), 1e-12)
	measure(kernels.Expert(4), w, 1.1)
	require.InDelta(t, 1.1, factor(kernels.Expert(4), w), .02)
	_, _, err := m.Borrowed(kernels.Expert(3), w)
	require.ErrorContains(t, err, "no prior for shape ExpertParallel/3")
	_, _, err = m.Borrowed(kernels.Expert(4), Work{})
	require.ErrorContains(t, err, "invalid step")
}

// Beyond the tables, a prior is less certain the further out it is. Measurements of one width apply to a near one, not
// to a far one; a measured width is known.
func TestBorrowed_WhenWiderThanTables(t *testing.T) {
	table, err := kernels.Open("Qwen3-235B-A22B")
	require.NoError(t, err)
	m := New(Options{})
	for _, ranks := range []int{8, 12, 13, 16, 20, 32} {
		p, err := kernels.Guess(table, view(t, "Qwen3-235B-A22B"), "trtllm", "balanced", kernels.Expert(ranks))
		require.NoError(t, err)
		m.Add(p)
	}
	w := Work{Decode: 64, Context: 2048}
	of := func(ranks int) (relative float64, known bool) {
		e, known, err := m.Borrowed(kernels.Expert(ranks), w)
		require.NoError(t, err)
		return e.Deviation / e.Seconds, known
	}
	before := 0.0
	for _, ranks := range []int{8, 12, 16, 32} {
		deviation, known := of(ranks)
		require.False(t, known)
		require.Greater(t, deviation, before, "%d ranks", ranks)
		before = deviation
	}
	measure := func(ranks int) {
		prior, err := m.Prior(kernels.Expert(ranks), w)
		require.NoError(t, err)
		for range 300 {
			require.NoError(t, m.Observe(kernels.Expert(ranks), w, 1.2*prior))
		}
	}
	measure(8)
	for ranks, want := range map[int]bool{8: true, 12: true, 13: true, 16: false, 20: false} {
		_, known := of(ranks)
		require.Equal(t, want, known, "%d ranks, of what eight measured", ranks)
	}
	near, _ := of(12)
	far, _ := of(13)
	require.Greater(t, far, near)
	measure(13)
	_, known := of(20)
	require.True(t, known, "a step further")
	_, known = of(32)
	require.False(t, known)
	require.Zero(t, m.Beyond(kernels.Expert(8)))
	require.InDelta(t, 1, m.Beyond(kernels.Expert(16)), 1e-12)
}
