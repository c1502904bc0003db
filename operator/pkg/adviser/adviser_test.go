package adviser

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/policy"
	"tangram.dev/operator/pkg/simulator"
	"tangram.dev/operator/pkg/telemetry"
)

const model = "Qwen3-30B-A3B"

func view(t *testing.T) *geometry.View {
	t.Helper()
	all, err := geometry.Public()
	require.NoError(t, err)
	for _, g := range all {
		if g.Model == model {
			for g.MoeInner/g.GranuleRows < 8 { // 8 ranks share an expert
				g.GranuleRows, g.GranuleBytes = g.GranuleRows/2, g.GranuleBytes/2
			}
			v, err := geometry.New(g)
			require.NoError(t, err)
			return v
		}
	}
	t.Fatalf("no geometry %q", model)
	return nil
}

// told feeds gateway reports to an adviser wherever the simulator calls a policy.
type told struct {
	t       *testing.T
	a       *Adviser
	v       *geometry.View
	kv      uint64
	slower  float64 // than the table: this world's clock
	epoch   uint64
	before  policy.Telemetry
	steps   map[telemetry.StepKey]telemetry.Steps
	held    map[string]int
	decided []policy.Decision
}

func (p *told) Observe(_ kernels.Shape, w costmodel.Work, seconds float64) {
	k := telemetry.StepKey{Epoch: p.epoch, Octave: uint32(bits.Len(uint(w.Decode+w.Prefill)) - 1), Prefill: w.Prefill > 0}
	s := p.steps[k]
	p.steps[k] = telemetry.Steps{Steps: s.Steps + 1, Seconds: s.Seconds + seconds*p.slower, Decode: s.Decode + uint64(w.Decode),
		Context: s.Context + uint64(w.Decode*w.Context), PromptTokens: s.PromptTokens + uint64(w.Prefill), Before: s.Before + uint64(w.Prefill*w.Before)}
}

func (p *told) Decide(t policy.Telemetry, s policy.State) policy.Decision {
	sample := &telemetry.Sample{At: t.At * p.slower, Seconds: (t.At - p.before.At) * p.slower, Epoch: p.epoch, Whole: true, Steps: p.steps,
		Gauges: telemetry.Gauges{Running: t.Running, Decoding: t.Decoding, Waiting: t.Waiting, QueuedTokens: t.QueuedTokens, ContextTokens: t.ContextTokens,
			GeneratedTokens: t.Generated, ReservedTokens: t.Reserved, WaitingTokens: t.WaitingNeed},
		Total: telemetry.Counters{Arrived: t.Arrived, PromptTokens: t.PromptTokens, ReusedTokens: t.ReusedTokens, Finished: t.Finished,
			OutputTokens: t.OutputTokens, Steps: t.Steps, StepSeconds: t.StepSeconds * p.slower}}
	rates := costmodel.Rates{BytesPerSecond: s.Rates.BytesPerSecond / p.slower, FlipSeconds: s.Rates.FlipSeconds * p.slower, Hidden: s.Rates.Hidden}
	p.before, p.steps = t, map[telemetry.StepKey]telemetry.Steps{}
	d := p.a.Advise(sample, World{View: p.v, Shape: s.Shape, Epoch: p.epoch, Busy: s.Busy, KVBytes: p.kv, Rates: rates,
		Price: func(_, to kernels.Shape) (costmodel.Transition, error) {
			for _, o := range s.Options {
				if o.Shape == to {
					return o.Switch, nil
				}
			}
			return costmodel.Transition{}, errors.New("none of the world's")
		}})
	if d.Held {
		p.held[d.Why.Text]++
	}
	if d.Switch {
		p.epoch++
		p.decided = append(p.decided, d)
	}
	return d
}

// A world that starts in the wrong mode, with only another engine's table from other machines, finds the right mode,
// burst after burst. So does one of an unmeasured width.
func TestAdviserFindsRightMode_WhenPriorIsForeign(t *testing.T) {
	for _, c := range []struct {
		ranks        int
		slower, most float64 // most: of the better mode's latencies
	}{{8, 1, 1.05}, {8, 20, 1.05}, {6, 1, 1.05}, {3, 1, 1.1}} { // on 3 ranks, tries of Expert are a loss
		t.Run(fmt.Sprintf("%d ranks, %v times as slow", c.ranks, c.slower), func(t *testing.T) { chooses(t, c.ranks, c.slower, c.most) })
	}
}

func chooses(t *testing.T, ranks int, slower, most float64) {
	t.Helper()
	v := view(t)
	table, err := kernels.Open(model)
	require.NoError(t, err)
	shapes := []kernels.Shape{kernels.Expert(ranks), kernels.Tensor(ranks)}
	config, err := simulator.Build(v, table, "trtllm", "power_law_1.2", simulator.H200(), shapes...)
	require.NoError(t, err)
	config.Noise, config.Seed = .1, 7
	quiet, burst := float64(ranks)/2, float64(ranks)*7.5
	requests := simulator.Generate([]simulator.Rate{{Seconds: 400, PerSecond: quiet}, {Seconds: 200, PerSecond: burst}, {Seconds: 400, PerSecond: quiet}}, 1024, 512, 3)
	static := math.Inf(1)
	for i, s := range shapes {
		c := config
		c.Start = i
		r, err := simulator.Run(c, requests, policy.Static{}, nil)
		require.NoError(t, err)
		t.Logf("always %v: latencies %.0f", s, r.LatencySum)
		static = min(static, r.LatencySum)
	}
	a, err := New(Options{Prior: Prior{model, "sglang", "power_law_1.2"}, Policy: Calibrated})
	require.NoError(t, err)
	budget, err := simulator.H200().Memory.Budget(v, kernels.Expert(ranks))
	require.NoError(t, err)
	p := &told{t: t, a: a, v: v, kv: uint64(budget.GroupTokens) * budget.TokenBytes, slower: slower, steps: map[telemetry.StepKey]telemetry.Steps{}, held: map[string]int{}}
	r, err := simulator.Run(config, requests, p, nil)
	require.NoError(t, err)
	t.Logf("latencies %.0f; %d switches; held %v", r.LatencySum, len(r.Switches), p.held)
	for _, s := range r.Switches {
		t.Logf("%.1f s: %s -> %s: %s", s.At, s.From, s.To, s.Why.Text)
	}
	require.NotEmpty(t, p.decided)
	require.Contains(t, p.decided[0].Why.Text, "is not known yet", "the first switch is a try")
	require.Less(t, r.LatencySum, most*static, "what nobody had to choose")
}

func sample(at float64) *telemetry.Sample {
	return &telemetry.Sample{At: at, Seconds: 1, Epoch: 1, Whole: true, Gauges: telemetry.Gauges{Running: 8, Decoding: 8, ContextTokens: 8000, ReservedTokens: 9000, Ranks: 8},
		Total: telemetry.Counters{Arrived: uint64(10 * at), PromptTokens: uint64(5000 * at), Finished: uint64(10 * at), OutputTokens: uint64(1000 * at), Steps: uint64(100 * at), StepSeconds: at},
		Steps: map[telemetry.StepKey]telemetry.Steps{{Epoch: 1, Octave: 3}: {Steps: 100, Seconds: 1, Decode: 800, Context: 800000}}}
}

func world(t *testing.T) World {
	t.Helper()
	return World{View: view(t), Shape: kernels.Expert(8), Epoch: 1, KVBytes: 64 << 30, Rates: costmodel.Rates{BytesPerSecond: 100e9, FlipSeconds: .01},
		Price: func(kernels.Shape, kernels.Shape) (costmodel.Transition, error) {
			return costmodel.Transition{BusiestBytes: 1 << 30, Flips: 24}, nil
		}}
}

// The layout stays for any fault in the input, and the reason names it.
func TestAdviserKeepsLayout_WhenInputIsInvalid(t *testing.T) {
	for words, change := range map[string]func(*telemetry.Sample, *World){
		"no layout is active":                     func(_ *telemetry.Sample, w *World) { w.Shape = kernels.Shape{} },
		"a world with one rank has only one mode": func(_ *telemetry.Sample, w *World) { w.Shape = kernels.Expert(1) },
		"neither mode ExpertParallel nor TensorParallel": func(_ *telemetry.Sample, w *World) {
			w.Shape = kernels.Shape{Ranks: 8, ExpertGroup: 2, AttentionGroup: 2}
		},
		"2 of 8 ranks sent no load report": func(s *telemetry.Sample, _ *World) { s.Whole, s.Gauges.Silent = false, 2 },
		"the gateway reports are incomplete: g: it is asleep": func(s *telemetry.Sample, _ *World) {
			s.Whole, s.Problems = false, []telemetry.Problem{{Source: "g", Why: "it is asleep"}}
		},
		"the clock went from":              func(s *telemetry.Sample, _ *World) { s.At = 1 },
		"bytes per second must be above 0": func(_ *telemetry.Sample, w *World) { w.Rates = costmodel.Rates{} },
		"a transition is in progress":      func(_ *telemetry.Sample, w *World) { w.Busy = true },
		"nothing is guessed":               func(_ *telemetry.Sample, w *World) { w.Shape = kernels.Expert(65) },
	} {
		t.Run(words, func(t *testing.T) {
			a, err := New(Options{Prior: Prior{model, "vllm", "balanced"}, Policy: Calibrated})
			require.NoError(t, err)
			for at := 1; at <= 4; at++ {
				a.Advise(sample(float64(at)), world(t))
			}
			require.False(t, a.Advise(sample(5), world(t)).Held)
			s, w := sample(6), world(t)
			change(s, &w)
			d := a.Advise(s, w)
			require.True(t, d.Held)
			require.Equal(t, w.Shape, d.To)
			require.Contains(t, d.Why.Text, words)
		})
	}
	_, err := New(Options{Prior: Prior{"GPT-2", "vllm", "balanced"}, Policy: Calibrated})
	require.ErrorContains(t, err, "no table for model")
	_, err = New(Options{Prior: Prior{model, "abacus", "balanced"}, Policy: Calibrated})
	require.ErrorContains(t, err, "abacus")
	_, err = New(Options{Prior: Prior{model, "vllm", "balanced"}, Policy: "Oracle"})
	require.ErrorContains(t, err, "use Calibrated or Threshold")
}

// A mode with unknown step times is tried at most once an hour. It is not tried if that is expensive, live requests do
// not fit, or planner or memory reject it.
func TestAdviserLimitsTrialsOfUnmeasuredMode(t *testing.T) {
	tries := func(seconds int, change func(*World)) (n int) {
		a, err := New(Options{Prior: Prior{model, "vllm", "balanced"}, Policy: Calibrated})
		require.NoError(t, err)
		v := world(t)
		for at := 6; at <= seconds; at += 6 { // seconds
			w := v
			change(&w)
			if d := a.Advise(sample(float64(at)), w); d.Switch { // and it is not carried out
				require.Equal(t, kernels.Tensor(8), d.To)
				require.Contains(t, d.Why.Text, "not known yet")
				n++
			}
		}
		return n
	}
	require.Zero(t, tries(exploreAfter, func(*World) {}))
	require.Equal(t, 1, tries(exploreAgain, func(*World) {}))
	require.Equal(t, 2, tries(exploreAgain+2*exploreAfter, func(*World) {}))
	require.Zero(t, tries(200, func(w *World) { w.Rates.FlipSeconds = 1 }), "24 flips of a second are more than a hundred steps")
	require.Zero(t, tries(200, func(w *World) { w.KVBytes = 1 << 20 }), "8,000 tokens do not fit")
	require.Zero(t, tries(200, func(w *World) {
		w.Price = func(from, to kernels.Shape) (costmodel.Transition, error) {
			if from == to {
				return costmodel.Transition{}, nil
			}
			return costmodel.Transition{}, errors.New("too little memory")
		}
	}))
}

// The first steps determine the speed of this machine.
func TestScale(t *testing.T) {
	table, err := kernels.Open(model)
	require.NoError(t, err)
	prior, err := kernels.NewStep(table, view(t), "vllm", "balanced", kernels.Expert(8))
	require.NoError(t, err)
	m := costmodel.New(costmodel.Options{}, prior)
	seconds, err := m.Prior(kernels.Expert(8), costmodel.Work{Decode: 8, Context: 1000})
	require.NoError(t, err)
	var c scale
	_, known := c.factor()
	require.False(t, known)
	s := sample(1)
	s.Steps[telemetry.StepKey{Epoch: 9, Octave: 3}] = telemetry.Steps{Steps: 100, Seconds: 1e6, Decode: 800, Context: 800000} // of another layout
	c.add(s, world(t), m)
	factor, known := c.factor()
	require.True(t, known)
	require.InEpsilon(t, .01/seconds, factor, 1e-9)
}

// A world that returns to a width has kept the load in between, and does not use old load as current load.
func TestLoadHistoryIsKept_WhenWidthChanges(t *testing.T) {
	a, err := New(Options{Prior: Prior{model, "vllm", "balanced"}, Policy: Calibrated})
	require.NoError(t, err)
	arrived := uint64(0)
	ask := func(at, ranks, rate int) policy.Decision {
		arrived += uint64(rate)
		s, w := sample(float64(at)), world(t)
		s.Total.Arrived, s.Total.PromptTokens, s.Total.Finished, s.Total.OutputTokens = arrived, 500*arrived, arrived, 100*arrived
		w.Shape = kernels.Expert(ranks)
		w.Price = func(kernels.Shape, kernels.Shape) (costmodel.Transition, error) {
			return costmodel.Transition{}, errors.New("too little memory")
		}
		return a.Advise(s, w)
	}
	at := 0
	play := func(seconds, ranks, rate int) (last policy.Decision) {
		for range seconds {
			at++
			last = ask(at, ranks, rate)
		}
		return last
	}
	require.InEpsilon(t, 50, play(60, 8, 50).Why.Figures["rate"], .1)
	require.InEpsilon(t, 2, play(100, 4, 2).Why.Figures["rate"], .5)
	d := play(1, 8, 2)
	require.False(t, d.Held, d.Why.Text)
	require.InEpsilon(t, 2, d.Why.Figures["rate"], .5)
}

// If a hybrid is allowed and the kernels favor it, a world finds it like a mode: it tries it once, then uses its
// measurements. It considers no hybrid that is not allowed.
func TestAdviserFindsHybrid_WhenAllowed(t *testing.T) {
	v := view(t)
	table, err := kernels.Open(model)
	require.NoError(t, err)
	hybrid := kernels.Kind{ExpertGroup: kernels.AllRanks, AttentionGroup: 1}
	config, err := simulator.Build(v, table, "sglang", "power_law_1.2", simulator.H200(), kernels.Expert(8), kernels.Tensor(8), hybrid.On(8))
	require.NoError(t, err)
	config.Noise, config.Seed = .1, 7
	requests := simulator.Generate([]simulator.Rate{{Seconds: 200, PerSecond: 60}, {Seconds: 100, PerSecond: 90}}, 2048, 32, 3)
	latency := map[bool]float64{}
	for _, may := range []bool{false, true} {
		o := Options{Prior: Prior{model, "vllm", "power_law_1.2"}, Policy: Calibrated}
		if may {
			o.Hybrids[0] = hybrid
		}
		a, err := New(o)
		require.NoError(t, err)
		p := &told{t: t, a: a, v: v, kv: 60e9, slower: 1, steps: map[telemetry.StepKey]telemetry.Steps{}, held: map[string]int{}}
		r, err := simulator.Run(config, requests, p, nil)
		require.NoError(t, err)
		latency[may] = r.LatencySum
		went := 0
		for _, d := range p.decided {
			if d.To == hybrid.On(8) {
				went++
			}
		}
		require.Equal(t, may, went > 0)
	}
	t.Logf("latencies %.0f, with the hybrid %.0f", latency[false], latency[true])
	require.Less(t, latency[true], .8*latency[false])
}

// For engines that keep all heads of a request on one rank, the adviser uses that shape of mode TensorParallel: the
// bytes moved, and the KV capacity there.
func TestAdvise_WhenAttentionIsDataParallel(t *testing.T) {
	a, err := New(Options{Prior: Prior{model, "vllm", "balanced"}, Policy: Calibrated, AttentionByData: true})
	require.NoError(t, err)
	w := world(t)
	var asked []kernels.Shape
	w.Price = func(_, to kernels.Shape) (costmodel.Transition, error) {
		asked = append(asked, to)
		return costmodel.Transition{BusiestBytes: 1 << 30, Flips: 24}, nil
	}
	all := a.options(w, 8)
	require.Equal(t, []kernels.Shape{kernels.Expert(8), kernels.TensorByData(8)}, asked)
	require.Empty(t, all[1].Refused, "its kernels are known")
	require.Equal(t, all[0].WorldTokens, all[1].WorldTokens, "as each request's heads are on one rank in both")
	w.Shape = kernels.TensorByData(8)
	for at := 1; at <= 4; at++ {
		a.Advise(sample(float64(at)), w)
	}
	require.False(t, a.Advise(sample(5), w).Held)
}

// Temporary rejections are checked each time; a price is valid for one layout.
func TestOptions_WhenTemporarilyRejected(t *testing.T) {
	a, err := New(Options{Prior: Prior{model, "vllm", "balanced"}, Policy: Threshold})
	require.NoError(t, err)
	w, priced := world(t), 0
	w.Price = func(kernels.Shape, kernels.Shape) (costmodel.Transition, error) {
		priced++
		return costmodel.Transition{}, nil
	}
	for _, why := range []string{"", "it failed lately", ""} {
		w.Refused = func(s kernels.Shape) string {
			if s == kernels.Tensor(8) {
				return why
			}
			return ""
		}
		require.Equal(t, why, a.options(w, 8)[1].Refused)
	}
	require.Equal(t, 2, priced)
	w.Epoch++
	a.options(w, 8)
	require.Equal(t, 4, priced, "another layout")
}
