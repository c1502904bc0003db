package policy_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/policy"
)

func priors(t testing.TB) []*kernels.Step {
	t.Helper()
	table, err := kernels.Open("Qwen3-235B-A22B")
	require.NoError(t, err)
	all, err := geometry.Public()
	require.NoError(t, err)
	for _, g := range all {
		if g.Model == "Qwen3-235B-A22B" {
			v, err := geometry.New(g)
			require.NoError(t, err)
			var out []*kernels.Step
			for _, s := range []kernels.Shape{kernels.Expert(8), kernels.Tensor(8)} {
				p, err := kernels.NewStep(table, v, "trtllm", "power_law_1.2", s)
				require.NoError(t, err)
				out = append(out, p)
			}
			return out
		}
	}
	t.Fatal("no geometry")
	return nil
}

// trained returns policies of each kind, by name; the calibrated one has measured its steps.
func trained(t testing.TB, steps []*kernels.Step) map[string]policy.Policy {
	t.Helper()
	m := costmodel.New(costmodel.Options{}, steps...)
	c := policy.NewCalibrated(policy.Defaults(), m)
	for _, p := range steps {
		for tokens := 1; tokens <= 8192; tokens *= 2 {
			for _, w := range []costmodel.Work{{Decode: tokens, Context: 2048}, {Decode: 32, Context: 2048, Prefill: tokens}} {
				seconds, err := m.Prior(p.Shape(), w)
				require.NoError(t, err)
				for range 20 {
					c.Observe(p.Shape(), w, seconds)
				}
			}
		}
	}
	return map[string]policy.Policy{"threshold": policy.NewThreshold(policy.Published()), "calibrated": c}
}

// worldly is a random walk of a world's reports.
type worldly struct {
	random *rand.Rand
	t      policy.Telemetry
	s      policy.State
	load   int
	calm   bool // the load is constant, and nothing is rejected
}

func newWorldly(seed uint64) *worldly {
	w := &worldly{random: rand.New(rand.NewPCG(seed, 9)), load: 50}
	w.s = policy.State{Shape: kernels.Expert(8), Rates: costmodel.Rates{BytesPerSecond: 300e9, FlipSeconds: .001}}
	for _, shape := range []kernels.Shape{kernels.Expert(8), kernels.Tensor(8)} {
		w.s.Options = append(w.s.Options, policy.Option{Shape: shape, WorldTokens: 1000000, Switch: costmodel.Transition{BusiestBytes: 50e9, Flips: 47, TokenBytes: 40000}})
	}
	return w
}

func (w *worldly) next() {
	if !w.calm && w.random.IntN(20) == 0 {
		w.load = w.random.IntN(900)
	}
	n := max(0, w.load+w.random.IntN(21)-10)
	w.t.At += .5
	w.t.Running, w.t.Decoding, w.t.Waiting = n, n*9/10, n/8
	w.t.QueuedTokens = (w.t.Running - w.t.Decoding + w.t.Waiting) * 1000
	w.t.ContextTokens, w.t.Generated = w.t.Decoding*1300, w.t.Decoding*200
	w.t.Reserved = n * w.random.IntN(2500)
	arrived := uint64(w.random.IntN(n/10 + 2))
	w.t.Arrived += arrived
	w.t.PromptTokens += arrived * 1000
	w.t.Finished += arrived
	w.t.OutputTokens += arrived * 300
	w.t.Steps += 20
	w.t.StepSeconds += .5
	for i := range w.s.Options {
		w.s.Options[i].Refused = ""
		if !w.calm && w.random.IntN(4) == 0 {
			w.s.Options[i].Refused = "no room for spare banks"
		}
	}
}

// No switch within the cooldown, to an option that planner or memory rejects, or beyond the hourly limit. Equal calls
// get equal decisions.
func TestPoliciesNeverChooseRejectedOption(t *testing.T) {
	steps := priors(t)
	for name := range trained(t, steps) {
		switches := 0
		for seed := range uint64(6) {
			w, p, twin := newWorldly(seed), trained(t, steps)[name], trained(t, steps)[name]
			var at []float64
			for range 3000 {
				w.next()
				d := p.Decide(w.t, w.s)
				require.Equal(t, d, twin.Decide(w.t, w.s))
				checked(t, name, w, d)
				if !d.Switch {
					require.Equal(t, w.s.Shape, d.To)
					continue
				}
				if n := len(at); n > 0 {
					require.GreaterOrEqual(t, w.t.At-at[n-1], 5.0, "%s: within the cooldown", name)
				}
				at = append(at, w.t.At)
				w.s.Shape = d.To
			}
			switches += len(at)
			if name == "calibrated" {
				require.LessOrEqual(t, len(at), 60, "1,500 s are less than an hour")
			}
		}
		require.Positive(t, switches, "%s: nothing was tested", name)
	}
}

// checked recomputes a decision's figures without the policy's code.
func checked(t *testing.T, name string, w *worldly, d policy.Decision) {
	t.Helper()
	if d.Held {
		require.False(t, d.Switch)
		return
	}
	for _, r := range append(d.Rejected, policy.Rejected{Shape: d.To, Why: d.Why}) {
		f := r.Why.Figures
		for figure, value := range f {
			require.False(t, math.IsNaN(value), "%s: %s in %q", name, figure, r.Why.Text)
		}
		if requests, ok := f["requests"]; ok {
			require.Equal(t, float64(w.t.Running+w.t.Waiting), requests)
		}
		if reserved, ok := f["reserved"]; ok {
			require.Equal(t, float64(w.t.Reserved), reserved)
			require.Greater(t, reserved, f["fits"])
		}
		if stall, ok := f["stall"]; ok {
			require.InEpsilon(t, 50e9/300e9+47*.001+float64(w.t.ContextTokens)*40000/300e9, stall, 1e-9)
			require.InDelta(t, f["stay"]-f["switch"], f["saves"], 1e-9*math.Abs(f["stay"]))
		}
	}
	if !d.Switch {
		return
	}
	require.NotEqual(t, w.s.Shape, d.To)
	for _, o := range w.s.Options {
		if o.Shape == d.To {
			require.Empty(t, o.Refused)
			require.LessOrEqual(t, w.t.Reserved, o.WorldTokens)
		}
	}
	f := d.Why.Figures
	if name == "calibrated" {
		require.Greater(t, f["saves"], f["margin"]+f["deviation"])
		require.GreaterOrEqual(t, f["margin"], f["stall"]*float64(w.t.Running+w.t.Waiting)*.999)
		return
	}
	if d.To == kernels.Expert(8) {
		require.Greater(t, f["requests"], f["high"])
	} else {
		require.Less(t, f["mean"], f["low"])
	}
}

func TestNoDecisionOnBadInput(t *testing.T) {
	steps := priors(t)
	bad := map[string]func(*policy.Telemetry, *policy.State){
		"clock":        func(x *policy.Telemetry, _ *policy.State) { x.At = math.NaN() },
		"clock went":   func(x *policy.Telemetry, _ *policy.State) { x.At -= 100 },
		"no telemetry": func(x *policy.Telemetry, _ *policy.State) { x.At += 100 },
		"shrank":       func(x *policy.Telemetry, _ *policy.State) { x.Arrived = 0 },
		"shrank from":  func(x *policy.Telemetry, _ *policy.State) { x.StepSeconds = 0 },
		"step time":    func(x *policy.Telemetry, _ *policy.State) { x.StepSeconds = math.Inf(1) },
		"below 0":      func(x *policy.Telemetry, _ *policy.State) { x.Reserved = -1 },
		"rates":        func(_ *policy.Telemetry, s *policy.State) { s.Rates.BytesPerSecond = math.NaN() },
		"in progress":  func(_ *policy.Telemetry, s *policy.State) { s.Busy = true },
	}
	for name := range trained(t, steps) {
		for want, spoil := range bad {
			w, p := newWorldly(1), trained(t, steps)[name]
			for range 50 {
				w.next()
				p.Decide(w.t, w.s)
			}
			w.next()
			x, s := w.t, w.s
			spoil(&x, &s)
			d := p.Decide(x, s)
			require.True(t, d.Held, "%s: %s", name, want)
			require.False(t, d.Switch)
			require.Equal(t, s.Shape, d.To)
			require.Contains(t, d.Why.Text, want, "%s", name)
			// It continues with the second good report, and its figures are still numbers.
			for range 3 {
				w.next()
				d = p.Decide(w.t, w.s)
			}
			require.False(t, d.Held, "%s after %s: %s", name, want, d.Why.Text)
		}
	}
}

// Without measurements, the answer is "not known yet", not a switch.
func TestCalibratedDoesNotSwitch_WhenUnmeasured(t *testing.T) {
	p := policy.NewCalibrated(policy.Defaults(), costmodel.New(costmodel.Options{}, priors(t)...))
	w := newWorldly(3)
	unknown := 0
	for range 500 {
		w.next()
		d := p.Decide(w.t, w.s)
		require.False(t, d.Switch)
		for _, r := range d.Rejected {
			if r.Why.Text == "The step time of this shape is not known yet." {
				unknown++
			}
		}
	}
	require.Positive(t, unknown)
}

// Many requests lead to mode ExpertParallel, few to mode TensorParallel, on kernels with that property.
func TestPoliciesFollowLoad(t *testing.T) {
	steps := priors(t)
	for name := range trained(t, steps) {
		p, w := trained(t, steps)[name], newWorldly(1)
		for _, load := range []int{4, 700, 4} {
			for range 400 {
				w.calm, w.load = true, load
				w.next()
				w.t.Reserved = 0
				if d := p.Decide(w.t, w.s); d.Switch {
					w.s.Shape = d.To
				}
			}
			want := kernels.Tensor(8)
			if load > 256 {
				want = kernels.Expert(8)
			}
			require.Equal(t, want, w.s.Shape, "%s at %d requests", name, load)
		}
	}
}

// Dry-run decisions are not carried out: a switch that pays is repeated while it does, and does not count as a switch
// for cooldowns.
func TestDryRun_WhenSwitchPays(t *testing.T) {
	steps := priors(t)
	for name := range trained(t, steps) {
		p, w := trained(t, steps)[name], newWorldly(1)
		w.calm, w.load, w.s.DryRun = true, 4, true
		said := 0
		for i := range 200 {
			w.next()
			w.t.Reserved = 0
			d := p.Decide(w.t, w.s)
			require.False(t, d.Withheld, "%s: %s", name, d.Why.Text)
			if i >= 100 && d.Switch {
				require.Equal(t, kernels.Tensor(8), d.To)
				said++
			}
		}
		require.Equal(t, 100, said, name)
	}
}

// If engines keep the heads of a request on one rank, mode TensorParallel is another shape.
func TestThreshold_WhenAttentionIsDataParallel(t *testing.T) {
	p, w := policy.NewThreshold(policy.Published()), newWorldly(1)
	w.s.Options[1].Shape = kernels.TensorByData(8)
	for _, load := range []int{4, 700, 4} {
		for range 100 {
			w.calm, w.load = true, load
			w.next()
			w.t.Reserved = 0
			if d := p.Decide(w.t, w.s); d.Switch {
				w.s.Shape = d.To
			}
		}
		want := kernels.TensorByData(8)
		if load > 256 {
			want = kernels.Expert(8)
		}
		require.Equal(t, want, w.s.Shape)
	}
}
