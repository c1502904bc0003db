package policy_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/policy"
)

var (
	expert = kernels.Expert(2).Kind()
	tensor = kernels.Tensor(2).Kind()
)

// newJoint returns a policy with measured steps in some modes, at one width.
func newJoint(t testing.TB, priors []*kernels.Step, measured ...kernels.Kind) policy.Policy {
	t.Helper()
	o, of := policy.WidthDefaults(), policy.Defaults()
	o.SLO, o.Min, o.Max, of.RankChunk = asked, leastRanks, mostRanks, o.Chunk
	return measuring(t, policy.NewJoint(o, of, costmodel.New(costmodel.Options{}, priors...)), priors, measured)
}

func measuring(t testing.TB, p policy.Policy, priors []*kernels.Step, measured []kernels.Kind) policy.Policy {
	t.Helper()
	truth := costmodel.New(costmodel.Options{}, priors...)
	for _, k := range measured {
		for tokens := 1; tokens <= 16384; tokens *= 2 {
			for _, w := range []costmodel.Work{{Decode: tokens, Context: 1550}, {Decode: 32, Context: 1550, Prefill: tokens, Before: 375}} {
				seconds, err := truth.Prior(k.On(4), w)
				require.NoError(t, err)
				for range 20 {
					p.Observe(k.On(4), w, seconds)
				}
			}
		}
	}
	return p
}

// Mode and width are decided together. For any load, no decision is rejected by planner or memory, and none is for an
// unmeasured mode. The mode does not change within the cooldown, nor, at the active width, to one that does not keep up
// if the active one does. The checker reproduces each figure.
func TestJointNeverChoosesRejectedOption(t *testing.T) {
	priors := widthPriors(t)
	both, byMode, widths := 0, 0, 0
	for seed := range uint64(4) {
		measured := []kernels.Kind{expert, tensor}
		if seed == 3 {
			measured = measured[:1]
		}
		w, p, twin := newWide(seed, 4, expert, tensor), newJoint(t, priors, measured...), newJoint(t, priors, measured...)
		switch seed {
		case 1:
			w.standby = 2
			w.s.Pods = w.pods()
		case 2:
			w.scarcely(12)
		}
		c := newWidthChecker(t, priors)
		changed, mode := math.Inf(-1), math.Inf(-1)
		for range 900 {
			before := w.s.Shape
			w.next()
			if w.s.Shape != before {
				if changed = w.t.At; w.s.Shape.Kind() != before.Kind() {
					mode = w.t.At
				}
			}
			d := p.Decide(w.t, w.s)
			if seed == 0 {
				require.Equal(t, d, twin.Decide(w.t, w.s))
			}
			_, ofMode := d.Why.Figures["saves"]
			if ofMode && d.Switch {
				c.mode(w, d)
				byMode++
			} else {
				c.check(w, d)
			}
			if !d.Switch {
				require.Equal(t, w.s.Shape, d.To)
				continue
			}
			require.Contains(t, measured, d.To.Kind(), "a mode that nobody measured")
			i := slices.IndexFunc(w.s.Options, func(o policy.Option) bool { return o.Shape == d.To })
			require.GreaterOrEqual(t, i, 0)
			require.Empty(t, w.s.Options[i].Refused)
			require.LessOrEqual(t, w.t.Reserved, w.s.Options[i].WorldTokens)
			if d.To.Ranks == w.s.Shape.Ranks && w.s.Pods.Wanted.Ranks == 0 {
				require.GreaterOrEqual(t, w.t.At-mode, 5.0, "the mode within the cooldown: %s", d.Why.Text)
			}
			wanted := w.s.Shape
			if w.s.Pods.Wanted.Ranks > 0 {
				wanted = w.s.Pods.Wanted
			}
			require.NotEqual(t, wanted, d.To)
			switch {
			case modeFirst(d):
				require.Zero(t, w.s.Pods.Wanted.Ranks, "while pods come the mode stays")
			case ofMode:
				require.Zero(t, w.s.Pods.Wanted.Ranks, "while pods come the mode stays")
			default:
				widths++
				require.NotEqual(t, wanted.Ranks, d.To.Ranks)
				if d.To.Ranks < wanted.Ranks {
					require.GreaterOrEqual(t, w.t.At-changed, policy.WidthDefaults().Cooldown, "narrower within the cooldown")
				}
				if d.To.Kind() != wanted.Kind() {
					both++
				}
			}
			if d.To.Ranks != wanted.Ranks {
				changed = w.t.At
			}
			if d.To.Kind() != w.s.Shape.Kind() && d.To.Ranks <= w.s.Shape.Ranks {
				mode = w.t.At
			}
			w.follow(d.To)
		}
	}
	t.Logf("%d decisions on the width, %d of them on the mode with it, %d on the mode alone", widths, both, byMode)
	require.Positive(t, widths, "nothing was tested")
	require.Positive(t, both, "nothing was tested")
	require.Positive(t, byMode, "nothing was tested")
}

// mode checks a decision on the mode: the figures show its savings, and at the active width it keeps up if the active
// mode does.
func (c *widthChecker) mode(w *wide, d policy.Decision) {
	c.arrive, c.at = append(c.arrive, float64(w.t.Arrived-c.before.Arrived)), append(c.at, w.t.At)
	c.before = w.t
	f := d.Why.Figures
	require.Equal(c.t, w.s.Shape.Ranks, d.To.Ranks)
	require.Greater(c.t, f["saves"], f["margin"]+f["deviation"])
	require.InDelta(c.t, f["stay"]-f["switch"], f["saves"], 1e-9*math.Abs(f["stay"]))
	// The width's policy judged the modes up to some seconds ago: at the current load, and at that of then. A close
	// judgment has no reason.
	chunk := policy.WidthDefaults().Chunk
	before, _ := c.since(60 + policy.WidthDefaults().Every + 1)
	last, _ := c.since(policy.WidthDefaults().Every + 1)
	for _, rate := range []float64{c.rate(60), (before - last) / 60} {
		here, _ := c.steady(w, w.s.Shape, rate, chunk)
		if there, _ := c.steady(w, d.To, rate, chunk); here > .8 || there < 1.05 {
			return
		}
	}
	require.Fail(c.t, "a mode that would not keep up", "%v keeps up, %v would not", w.s.Shape, d.To)
}

// A load without enough KV in mode TensorParallel at any number of ranks grows the world in mode ExpertParallel, and
// the mode changes before the world waits for pods. Before modes and widths were decided together, it grew in mode
// TensorParallel, to a width that could not hold the load either.
func TestJointSwitchesModeBeforeGrowing_WhenKVIsShort(t *testing.T) {
	priors := widthPriors(t)
	w, p := newWide(5, 4, expert, tensor), newJoint(t, priors, expert, tensor)
	w.s.Shape = kernels.Tensor(4)
	w.scarcely(40)
	w.calm, w.rate = true, 3
	for range 300 {
		w.next()
		w.t.Reserved = 0
		if d := p.Decide(w.t, w.s); d.Switch {
			w.follow(d.To)
		}
	}
	w.s.Shape, w.rate = kernels.Tensor(w.s.Shape.Ranks), 60
	var said []string
	for second := range 600 {
		w.next()
		w.t.Reserved = 0
		if d := p.Decide(w.t, w.s); d.Switch {
			said = append(said, d.Why.Text)
			if second > 60 { // once the load is known
				require.Equal(t, expert, d.To.Kind(), d.Why.Text)
			}
			w.follow(d.To)
		}
	}
	require.NotEmpty(t, said)
	require.True(t, slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, "ExpertParallel/8, ") }), "%v", said)
	require.Equal(t, kernels.Expert(mostRanks), w.s.Shape)
	use, _ := newWidthChecker(t, priors).steady(w, kernels.Tensor(mostRanks), 60, policy.WidthDefaults().Chunk)
	require.Greater(t, use, 1.0, "mode TensorParallel has no KV for it at any width: else nothing was tested")
}

// The width's policy changes the mode if the other one has enough KV for the load, because that needs no pod. Pods are
// decided next.
func TestWidthSwitchesMode_WhenOtherModeHasKV(t *testing.T) {
	priors := widthPriors(t)
	w := newWide(5, 4, expert, tensor)
	w.scarcely(20)
	w.s.Shape, w.calm = kernels.Tensor(4), true
	p, checker := measuring(t, newWidth(priors), priors, []kernels.Kind{expert, tensor}), newWidthChecker(t, priors)
	var said []policy.Decision
	for second := range 400 {
		if w.rate = 2; second > 300 {
			w.rate = 20
		}
		w.next()
		w.t.Reserved = 0
		d := p.Decide(w.t, w.s)
		checker.check(w, d)
		if d.Switch && second <= 300 { // a later decrease is not tested here
			require.Equal(t, tensor, d.To.Kind(), d.Why.Text)
			continue
		}
		if d.Switch {
			said = append(said, d)
			w.follow(d.To)
		}
	}
	require.NotEmpty(t, said)
	require.Equal(t, kernels.Expert(4), said[0].To, said[0].Why.Text)
	require.True(t, modeFirst(said[0]), said[0].Why.Text)
	require.Equal(t, expert, w.s.Shape.Kind())
}
