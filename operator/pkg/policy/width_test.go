package policy_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/policy"
)

const leastRanks, mostRanks = 2, 8

var asked = policy.SLO{TTFT: 2, TPOT: .1, Share: .9}

func widthPriors(t testing.TB) []*kernels.Step { return widthPriorsOf(t, "trtllm") }

func widthPriorsOf(t testing.TB, engine string) []*kernels.Step {
	t.Helper()
	table, err := kernels.Open("Qwen3-30B-A3B")
	require.NoError(t, err)
	all, err := geometry.Public()
	require.NoError(t, err)
	var out []*kernels.Step
	for _, g := range all {
		if g.Model != "Qwen3-30B-A3B" {
			continue
		}
		v, err := geometry.New(g)
		require.NoError(t, err)
		for n := 1; n <= mostRanks; n++ {
			for _, s := range []kernels.Shape{kernels.Expert(n), kernels.Tensor(n)} {
				p, err := kernels.At(table, v, engine, "power_law_1.2", s)
				require.NoError(t, err)
				out = append(out, p)
			}
		}
	}
	return out
}

func newWidth(priors []*kernels.Step) *policy.Width {
	o := policy.WidthDefaults()
	o.SLO, o.Min, o.Max = asked, leastRanks, mostRanks
	return policy.NewWidth(o, costmodel.New(costmodel.Options{}, priors...))
}

// wide is a world with a random load. Its client latencies are those of a world that keeps up, unless more than `most`
// arrives per rank.
type wide struct {
	random   *rand.Rand
	t        policy.Telemetry
	s        policy.State
	rate     float64
	calm     bool
	starting float64 // seconds until pods are ready
	standby  int     // standby ranks
	scarce   int     // divisor of KV
}

func (w *wide) pods() policy.Pods {
	return policy.Pods{Ready: w.s.Shape.Ranks + w.standby, Standby: w.standby, Startup: startup}
}

const startup = 30.0

// tokens is the KV capacity: if it is scarce, more than two ranks in mode TensorParallel replicate the two heads.
func (w *wide) tokens(s kernels.Shape) int {
	if w.scarce == 0 {
		return 200000 * s.Ranks
	}
	return 200000 * s.Ranks / max(1, s.AttentionGroup/2) / w.scarce
}

// scarcely divides KV by `times`.
func (w *wide) scarcely(times int) {
	w.scarce = times
	for i := range w.s.Options {
		w.s.Options[i].WorldTokens = w.tokens(w.s.Options[i].Shape)
	}
}

func newWide(seed uint64, ranks int, modes ...kernels.Kind) *wide {
	if modes == nil {
		modes = []kernels.Kind{kernels.Expert(2).Kind()}
	}
	w := &wide{random: rand.New(rand.NewPCG(seed, 11)), rate: 10}
	w.s = policy.State{Shape: kernels.Expert(ranks), Rates: costmodel.Rates{BytesPerSecond: 300e9, FlipSeconds: .001}, Pods: policy.Pods{Ready: ranks, Startup: startup}}
	for n := leastRanks - 1; n <= mostRanks+1; n++ { // also out of bounds
		for _, k := range modes {
			s := k.On(n)
			if len(w.s.Options) == 0 || w.s.Options[len(w.s.Options)-1].Shape != s { // one rank has no mode
				w.s.Options = append(w.s.Options, policy.Option{Shape: s, WorldTokens: w.tokens(s), Switch: costmodel.Transition{BusiestBytes: 1e9, Flips: 2}})
			}
		}
	}
	return w
}

func (w *wide) next() {
	if !w.calm && w.random.IntN(60) == 0 {
		w.rate = 150 * w.random.Float64() * w.random.Float64()
	}
	w.t.At++
	n := uint64(max(0, w.rate+math.Sqrt(w.rate)*w.random.NormFloat64()))
	w.t.Arrived, w.t.Finished = w.t.Arrived+n, w.t.Finished+n
	w.t.PromptTokens, w.t.OutputTokens = w.t.PromptTokens+n*1500, w.t.OutputTokens+n*100
	w.t.Running, w.t.Decoding, w.t.ContextTokens = int(n), int(n), int(n)*1550
	w.t.Reserved = int(n) * 1600
	w.t.Steps, w.t.StepSeconds = w.t.Steps+50, w.t.StepSeconds+1
	w.t.Felt = policy.Felt{Answers: int(60 * w.rate), Within: 1}
	for i := range w.s.Options {
		w.s.Options[i].Refused = ""
		if !w.calm && w.random.IntN(6) == 0 {
			w.s.Options[i].Refused = "no room for spare banks"
		}
	}
	// Pods start, and the world changes.
	if w.s.Pods.Wanted.Ranks > 0 {
		w.s.Pods.Waiting++
		if w.starting--; w.starting <= 0 && !w.s.Pods.Refused {
			w.s.Shape = w.s.Pods.Wanted
			w.s.Pods = w.pods()
		}
	}
}

// follow carries out a decision as a world does: it shrinks immediately.
func (w *wide) follow(to kernels.Shape) {
	if to.Ranks <= w.s.Shape.Ranks {
		w.s.Shape = to
		w.s.Pods = w.pods()
		return
	}
	w.s.Pods.Wanted, w.s.Pods.Waiting, w.starting = to, 0, startup
	if to.Ranks <= w.s.Pods.Ready {
		w.starting = 1
	}
}

// No decision that planner or memory rejects, out of bounds or for another mode, and no decrease within the cooldown of
// any change. Equal calls get equal decisions, and every figure equals one recomputed without the policy's code.
func TestWidthNeverChoosesRejectedOption(t *testing.T) {
	priors := widthPriors(t)
	ups, downs, none := 0, 0, 0
	for _, seed := range []uint64{0, 1, 2} {
		w, p, twin := newWide(seed, 4), newWidth(priors), newWidth(priors)
		if seed == 1 {
			w.scarcely(40)
		}
		if seed == 2 {
			w.standby = 2
			w.s.Pods = w.pods()
		}
		c := newWidthChecker(t, priors)
		changed := math.Inf(-1) // decided on, or completed
		for range 1500 {
			before := w.s.Shape
			w.next()
			if w.s.Shape != before {
				changed = w.t.At
			}
			d := p.Decide(w.t, w.s)
			if seed == 2 {
				require.Equal(t, d, twin.Decide(w.t, w.s))
			}
			c.check(w, d)
			if !d.Switch {
				require.Equal(t, w.s.Shape, d.To)
				continue
			}
			if strings.Contains(d.Why.Text, "No number of ranks meets the SLO") {
				require.Less(t, d.Why.Figures["near"], 1.0)
				none++
			}
			wanted := w.s.Shape
			if w.s.Pods.Wanted.Ranks > 0 {
				wanted = w.s.Pods.Wanted
			}
			require.NotEqual(t, wanted, d.To, "it is so already")
			require.GreaterOrEqual(t, d.To.Ranks, leastRanks)
			require.LessOrEqual(t, d.To.Ranks, mostRanks)
			require.Equal(t, kernels.Expert(d.To.Ranks), d.To)
			if d.To.Ranks < wanted.Ranks {
				require.GreaterOrEqual(t, w.t.At-changed, policy.WidthDefaults().Cooldown, "narrower within the cooldown")
				downs++
			} else {
				ups++
			}
			for _, o := range w.s.Options {
				if o.Shape == d.To && o.Shape != w.s.Shape {
					require.Empty(t, o.Refused)
					require.LessOrEqual(t, w.t.Reserved, o.WorldTokens)
				}
			}
			changed = w.t.At
			w.follow(d.To)
		}
	}
	require.Positive(t, ups, "nothing was tested")
	require.Positive(t, downs, "nothing was tested")
	require.Positive(t, none, "the SLO was held all the time")
}

// Full steps of six ranks and more exceed TPOT, so they violate it as soon as prompts queue up, as bursts of a load
// with a long TTFT cause. No width meets the SLO; five ranks come nearest, not the widest.
func TestWidthChoosesNearest_WhenNoneMeetsSLO(t *testing.T) {
	priors := widthPriorsOf(t, "sglang")
	full := func(ranks int) float64 {
		chunk := int(policy.WidthDefaults().Chunk)
		for _, p := range priors {
			if p.Shape() == kernels.Expert(ranks) {
				return p.Even(kernels.Load{Decode: 64, Context: 64 * 1550, Prefill: chunk, Chunks: p.Chunk(0, chunk)}, ranks*(chunk+64))
			}
		}
		return math.NaN()
	}
	o := policy.WidthDefaults()
	o.SLO, o.Min, o.Max = policy.SLO{TTFT: 30, TPOT: (full(5) + full(6)) / 2, Share: .9}, leastRanks, mostRanks
	w, p := newWide(1, 4), policy.NewWidth(o, costmodel.New(costmodel.Options{}, priors...))
	w.calm = true
	narrower := false
	var last policy.Decision
	for second := range 1100 {
		w.rate = 10
		if second < 500 && second%120 < 40 { // bursts that no width holds; they stay in the replayed past
			w.rate = 130
		}
		w.next()
		w.t.Felt.Within = .85
		d := p.Decide(w.t, w.s)
		if d.Switch {
			t.Logf("%.0f s: %v -> %v: %s", w.t.At, w.s.Shape, d.To, d.Why.Text)
			narrower = narrower || d.To.Ranks < w.s.Shape.Ranks && strings.Contains(d.Why.Text, "No number of ranks meets the SLO at this load. This number comes closest.")
			w.follow(d.To)
		}
		last = d
	}
	require.True(t, narrower)
	require.Equal(t, kernels.Expert(5), w.s.Shape)
	for _, r := range last.Rejected {
		if r.Shape.Ranks >= leastRanks && r.Shape.Ranks <= mostRanks {
			require.Less(t, r.Why.Figures["near"], last.Why.Figures["near"], "%v comes nearer than %v", r.Shape, last.To)
		}
	}
}

// If the load exceeds every width, and the whole past violates the SLO at each, the widest loses least from now on: its
// steps are the least overfull.
func TestWidthChoosesWidest_WhenLoadExceedsAll(t *testing.T) {
	priors := widthPriors(t)
	o := policy.WidthDefaults()
	o.SLO, o.Min, o.Max = policy.SLO{TTFT: .5, TPOT: 60, Share: .9}, leastRanks, mostRanks
	w, p := newWide(1, 2), policy.NewWidth(o, costmodel.New(costmodel.Options{}, priors...))
	w.calm, w.rate = true, 600
	var last policy.Decision
	for range 400 {
		w.next()
		w.t.Felt.Within = 0
		if last = p.Decide(w.t, w.s); last.Switch {
			w.follow(last.To)
		}
	}
	require.Less(t, last.Why.Figures["within"], .01)
	require.Equal(t, kernels.Expert(mostRanks), w.s.Shape)
	require.NotEmpty(t, last.Rejected)
	for _, r := range last.Rejected {
		require.Less(t, r.Why.Figures["within"], .01)
	}
}

// Standby ranks count. While they suffice until pods could start, the world does not grow early for an increasing load.
// It holds the load, with fewer ranks. Decisions equal the policy's verdicts for both times.
func TestWidthCountsStandbyRanks(t *testing.T) {
	priors := widthPriors(t)
	grow := func(standby int) (rankSeconds, full float64, first policy.Decision) {
		w, p := newWide(1, 3), newWidth(priors)
		w.calm, w.standby = true, standby
		w.s.Pods = w.pods()
		w.s.Pods.Startup = 120
		for second := range 1000 {
			w.rate = 20 + float64(second)/12
			w.next()
			w.s.Pods.Startup = 120
			rankSeconds += float64(max(w.s.Shape.Ranks, w.s.Pods.Wanted.Ranks)) // pods cost from the request for them
			d := p.Decide(w.t, w.s)
			if own := d.Why.Figures; !d.Switch && own["ranks"] == float64(w.s.Shape.Ranks) && own["use"] > 1 {
				full++
			}
			if d.Switch && d.To.Ranks > w.s.Shape.Ranks && first.To.Ranks == 0 && second > 300 {
				first = d
			}
			if d.Switch {
				w.follow(d.To)
				if standby == 0 && d.To.Ranks > w.s.Shape.Ranks {
					w.starting = 120
				}
			}
		}
		return rankSeconds, full, first
	}
	cold, fullCold, before := grow(0)
	warm, fullWarm, with := grow(1)
	t.Logf("rank-seconds %.0f cold, %.0f with one that stands by", cold, warm)
	require.Less(t, warm, .97*cold)
	require.Zero(t, fullCold)
	require.Zero(t, fullWarm)
	require.NotContains(t, before.Why.Figures, "then ranks")
	f := with.Why.Figures
	require.InDelta(t, f["ranks"]+1, f["then ranks"], 0)
	require.Greater(t, f["then forecast"], f["forecast"], "the load grows")
	require.Contains(t, with.Why.Text, "Including standby ranks: ")
}

// Few requests need few ranks, many need many, and figures explain it.
func TestWidthFollowsLoad(t *testing.T) {
	priors := widthPriors(t)
	w, p := newWide(1, 4), newWidth(priors)
	w.calm = true
	ranks := map[float64]int{}
	for _, rate := range []float64{10, 90, 10} {
		w.rate = rate
		for range 1500 {
			w.next()
			if d := p.Decide(w.t, w.s); d.Switch {
				require.Contains(t, d.Why.Text, "meet the SLO")
				w.follow(d.To)
			}
		}
		if was, there := ranks[rate]; there {
			require.Equal(t, was, w.s.Shape.Ranks, "the same load, the same width")
		}
		ranks[rate] = w.s.Shape.Ranks
	}
	require.Equal(t, leastRanks, ranks[10])
	require.Greater(t, ranks[90], 4)
}

func TestWidthMakesNoDecisionOnBadInput(t *testing.T) {
	priors := widthPriors(t)
	bad := map[string]func(*policy.Telemetry, *policy.State){
		"clock":            func(x *policy.Telemetry, _ *policy.State) { x.At = math.NaN() },
		"clock went":       func(x *policy.Telemetry, _ *policy.State) { x.At -= 100 },
		"no telemetry":     func(x *policy.Telemetry, _ *policy.State) { x.At += 100 },
		"shrank":           func(x *policy.Telemetry, _ *policy.State) { x.Arrived = 0 },
		"below 0":          func(x *policy.Telemetry, _ *policy.State) { x.Reserved = -1 },
		"rates":            func(_ *policy.Telemetry, s *policy.State) { s.Rates.BytesPerSecond = math.NaN() },
		"client latencies": func(x *policy.Telemetry, _ *policy.State) { x.Felt.FirstToken = math.NaN() },
		"are invalid":      func(x *policy.Telemetry, _ *policy.State) { x.Felt.Within = 1.5 },
		"in progress":      func(_ *policy.Telemetry, s *policy.State) { s.Busy = true },
		"not an option":    func(_ *policy.Telemetry, s *policy.State) { s.Shape = kernels.Expert(64) },
		"no shape with 2 to 8 ": func(_ *policy.Telemetry, s *policy.State) {
			s.Options = nil
			s.Options = []policy.Option{{Shape: s.Shape}}
			s.Options[0].Shape = kernels.Expert(64)
			s.Shape = kernels.Expert(64)
		},
	}
	for want, spoil := range bad {
		w, p := newWide(1, 4), newWidth(priors)
		for range 50 {
			w.next()
			if d := p.Decide(w.t, w.s); d.Switch {
				w.follow(d.To)
			}
		}
		w.next()
		x, s := w.t, w.s
		spoil(&x, &s)
		d := p.Decide(x, s)
		require.True(t, d.Held, "%s: %s", want, d.Why.Text)
		require.False(t, d.Switch)
		require.Equal(t, s.Shape, d.To)
		require.Contains(t, d.Why.Text, want)
		// It continues with the second good report.
		for range 3 {
			w.next()
			d = p.Decide(w.t, w.s)
		}
		require.False(t, d.Held, "after %s: %s", want, d.Why.Text)
	}
}

func TestWidthOptionsCheckRejectsInvalidValues(t *testing.T) {
	good := policy.WidthDefaults()
	good.SLO, good.Min, good.Max = asked, 2, 8
	require.NoError(t, good.Check())
	for words, spoil := range map[string]func(*policy.WidthOptions){
		"from 9 to 8 ranks":          func(o *policy.WidthOptions) { o.Min = 9 },
		"from 0 to 8 ranks":          func(o *policy.WidthOptions) { o.Min = 0 },
		"needs a TTFT":               func(o *policy.WidthOptions) { o.SLO.TTFT, o.SLO.TPOT = 0, 0 },
		"TTFT NaN":                   func(o *policy.WidthOptions) { o.SLO.TTFT = math.NaN() },
		"invalid share of answers 1": func(o *policy.WidthOptions) { o.SLO.Share = 1 },
	} {
		o := good
		spoil(&o)
		require.ErrorContains(t, o.Check(), words)
	}
}

// An SLO that no width meets at any load; and a model whose error exceeds its limit.
func TestWidthReportsUnreachableSLO(t *testing.T) {
	priors := widthPriors(t)
	o := policy.WidthDefaults()
	o.SLO, o.Min, o.Max = policy.SLO{TTFT: 1e-4, Share: .9}, leastRanks, mostRanks
	p, w := policy.NewWidth(o, costmodel.New(costmodel.Options{}, priors...)), newWide(1, 4)
	w.calm = true
	var d policy.Decision
	for range 100 {
		w.next()
		d = p.Decide(w.t, w.s)
		require.False(t, d.Switch)
	}
	require.True(t, d.Held)
	require.Equal(t, policy.OutOfReach, d.Cause)
	require.NotEmpty(t, d.Rejected)

	p, w = newWidth(priors), newWide(1, 4)
	w.calm, w.rate = true, 3
	for range 1500 {
		w.next()
		w.t.Felt.FirstToken, w.t.Felt.Within = 30, 0 // the model expects no wait
		if d = p.Decide(w.t, w.s); d.Switch {
			w.follow(d.To)
		}
	}
	require.True(t, d.Held, d.Why.Text)
	require.Equal(t, policy.Contradicted, d.Cause)
}

// If the cluster has no room for all pods, the world becomes as wide as the started ones allow, and requests more
// later.
func TestWidthIsLimitedByStartedPods(t *testing.T) {
	priors := widthPriors(t)
	w, p := newWide(1, 3), newWidth(priors)
	w.calm, w.rate = true, 120
	asks, settled := 0, 0
	var lastAsk float64
	for range 1200 {
		w.next()
		if w.s.Pods.Wanted.Ranks > 5 { // only two more fit
			w.s.Pods.Refused, w.s.Pods.Ready = true, 5
		}
		d := p.Decide(w.t, w.s)
		if !d.Switch {
			continue
		}
		if d.To.Ranks > 5 {
			if settled > 0 {
				require.GreaterOrEqual(t, w.t.At-lastAsk, policy.WidthDefaults().Again, "asked again too soon")
			}
			asks++
			lastAsk = w.t.At
			w.follow(d.To)
			continue
		}
		if w.s.Pods.Refused {
			require.Contains(t, d.Why.Text, "The cluster has no room for more pods.")
			require.Equal(t, 5, d.To.Ranks)
			settled++
			w.s.Shape, w.s.Pods = d.To, policy.Pods{Ready: 5, Startup: startup}
			continue
		}
		w.follow(d.To)
	}
	require.Greater(t, asks, 1)
	require.Greater(t, settled, 1)
	require.Equal(t, 5, w.s.Shape.Ranks)
}
