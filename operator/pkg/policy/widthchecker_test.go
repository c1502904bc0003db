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

// widthChecker recomputes the figures of decisions from the telemetry alone.
type widthChecker struct {
	t      *testing.T
	model  *costmodel.Model
	before policy.Telemetry
	seen   bool
	arrive []float64 // requests of each second
	times  float64   // factor on the replayed load
	at     []float64
}

func newWidthChecker(t *testing.T, priors []*kernels.Step) *widthChecker {
	return &widthChecker{t: t, model: costmodel.New(costmodel.Options{}, priors...)}
}

func (c *widthChecker) check(w *wide, d policy.Decision) {
	t := c.t
	if c.seen {
		c.arrive, c.at = append(c.arrive, float64(w.t.Arrived-c.before.Arrived)), append(c.at, w.t.At)
	}
	first := !c.seen
	c.before, c.seen = w.t, true
	if first || d.Held {
		require.False(t, d.Switch)
		return
	}
	o := policy.WidthDefaults()
	tried := map[int][]kernels.Shape{}
	for _, r := range append(slices.Clone(d.Rejected), policy.Rejected{Shape: d.To, Why: d.Why}) {
		if r.Why.Figures["use"] > 0 {
			tried[r.Shape.Ranks] = append(tried[r.Shape.Ranks], r.Shape)
		}
	}
	nearest := 0.0 // closest approach of any width to the SLO; the decided one comes last
	for i, r := range append(slices.Clone(d.Rejected), policy.Rejected{Shape: d.To, Why: d.Why}) {
		f := r.Why.Figures
		for figure, value := range f {
			require.False(t, math.IsNaN(value), "%s in %q", figure, r.Why.Text)
		}
		if fits, ok := f["fits"]; ok {
			require.Greater(t, f["reserved"], fits)
		}
		ranks, ok := f["ranks"]
		if !ok || f["use"] == 0 {
			continue
		}
		require.GreaterOrEqual(t, f["headroom"], 1.0)
		require.GreaterOrEqual(t, f["asked"], .8-1e-9)
		require.LessOrEqual(t, f["asked"], .95+1e-9)
		require.InDelta(t, min(max(2*asked.Share-f["attained"], .8), .95), f["asked"], 1e-9, "asked for what is owed")
		// Repeated decisions are some seconds old; those that switch are new.
		if !d.Switch {
			continue
		}
		ahead := float64(startup)
		if w.standby > 0 && f["then ranks"] > 0 || modeFirst(d) && r.Shape == d.To {
			ahead = o.Joining
		}
		require.InDelta(t, c.rateFor(ahead, f["clumped"]), f["rate"], 1e-6)
		require.GreaterOrEqual(t, f["forecast"], f["rate"]/2-1e-9)
		require.LessOrEqual(t, f["forecast"], 2*f["rate"]+1e-9)
		require.InDelta(t, c.requests(o.Window), f["requests"], 1e-6)
		require.Equal(t, float64(r.Shape.Ranks), ranks)
		use, each := c.steady(w, r.Shape, max(f["rate"], f["forecast"]*f["headroom"]), o.Chunk)
		require.InEpsilon(t, use, f["use"], .02, "%v at %v requests per second", r.Shape, f["rate"])
		if each > 0 {
			require.InEpsilon(t, each, f["each"]/f["corrected each"], .02)
		}
		// This is slow. The replay hardly models a queue for KV, which depends on how full KV would be
		// (docs/policy.md), so it is not compared then.
		if w.scarce == 0 && (r.Shape == d.To || i%4 == 0) {
			c.past(w, r, tried[r.Shape.Ranks])
		}
		near := min(1, f["within"]/f["asked"], o.Use/f["use"], asked.TPOT/f["each"])
		if then := int(f["then ranks"]); w.standby > 0 && then > 0 {
			require.LessOrEqual(t, then, int(ranks)+w.standby)
			require.InDelta(t, c.rateFor(startup, f["clumped"]), f["then rate"], 1e-6)
			use, each := c.steady(w, r.Shape.Kind().On(then), max(f["then rate"], f["then forecast"]*f["then headroom"]), o.Chunk)
			require.InEpsilon(t, use, f["then use"], .02)
			if each > 0 {
				require.InEpsilon(t, each, f["then each"]/f["corrected each"], .02)
			}
			near = min(near, f["then within"]/f["asked"], o.Use/f["then use"], asked.TPOT/f["then each"])
		} else {
			require.Zero(t, then)
		}
		require.InDelta(t, near, f["near"], 1e-9)
		nearest = max(nearest, near)
		if r.Shape != d.To {
			continue
		}
		if modeFirst(d) { // the active mode does not keep up; this one does, or is nearer and the target's
			use, each := c.steady(w, w.s.Shape, max(f["rate"], f["forecast"]*f["headroom"]), o.Chunk)
			require.True(t, use > .98*o.Use || each*f["corrected each"] > .98*asked.TPOT, "%v would have kept up: %v full, %v s", w.s.Shape, use, each)
			require.True(t, f["use"] <= o.Use && f["each"] <= asked.TPOT || min(o.Use/f["use"], asked.TPOT/f["each"]) >= .98*min(o.Use/use, asked.TPOT/(each*f["corrected each"])))
			require.Equal(t, w.s.Shape.Ranks, d.To.Ranks)
			continue
		}
		holds := f["within"] >= f["asked"] && f["use"] <= o.Use && f["each"] <= asked.TPOT
		require.True(t, holds || near < 1)
		require.True(t, near == 1 || near >= nearest-o.Margin, "%q does not hold the SLO: %v, another comes as near as %v", d.Why.Text, near, nearest)
	}
}

// since counts the arrivals of the seconds that ended in this period.
func (c *widthChecker) since(seconds float64) (n, long float64) {
	for i := range c.at {
		if c.at[i] >= c.before.At-seconds {
			n, long = n+c.arrive[i], long+1
		}
	}
	return n, long
}

// rateFor is the rate for a decision `ahead`: of the last minute, or of an end of it with a surely higher rate.
func (c *widthChecker) rateFor(ahead, clumped float64) float64 {
	out := c.rate(60)
	for _, seconds := range []float64{10, 20, 30, 40, 50} {
		if n, long := c.since(seconds); seconds >= ahead && long > 0 {
			out = max(out, n/long-2*math.Sqrt(n/long*clumped/seconds))
		}
	}
	return out
}

func (c *widthChecker) rate(seconds float64) float64 {
	n, long := c.since(seconds)
	return n / max(long, 1)
}

func (c *widthChecker) requests(seconds float64) float64 {
	n, _ := c.since(seconds)
	return n
}

// between is an interval of a figure.
type between struct{ low, high float64 }

func (b between) and(o between) between { return between{min(b.low, o.low), max(b.high, o.high)} }

// holds checks that a figure is in the interval, up to `off`, measured by `above`.
func (b between) holds(t *testing.T, figure float64, above func(x, y float64) float64, off float64, text string, args ...any) {
	t.Helper()
	if above(b.low, figure) < -off || above(figure, b.high) < -off {
		t.Fatalf(text+": %v, worked out again %v to %v", append(args, figure, b.low, b.high)...)
	}
}

// past replays the past of a width.
func (c *widthChecker) past(w *wide, r policy.Rejected, tried []kernels.Shape) {
	o, f, t := policy.WidthDefaults(), r.Why.Figures, c.t
	less := func(x, y float64) float64 { return y - x }
	again := c.bracket(w, tried, o, f["corrected"], f["corrected each"])
	const off = .1
	if alone, several := f["alone"]; several {
		require.GreaterOrEqual(t, f["within"], alone-1e-9, "no mode alone is better than the better of all")
		again.within.holds(t, f["within"], less, .15, "%v: share of the past within the SLO, of two modes", r.Shape)
		c.bracket(w, []kernels.Shape{r.Shape}, o, f["corrected"], f["corrected each"]).within.holds(t, alone, less, off, "%v: share of the past within the SLO in this mode alone", r.Shape)
		return // small differences decide which mode a second's times are of
	}
	again.within.holds(t, f["within"], less, off, "%v: share of the past within the SLO", r.Shape)
	if again.within.low < asked.Share {
		return // the times at the SLO's share are those of a queue, which is sensitive
	}
	again.ttft.holds(t, f["ttft"], func(x, y float64) float64 { return math.Log((y + .1) / (x + .1)) }, math.Log(3), "%v: seconds to the first token", r.Shape)
	again.tpot.holds(t, f["tpot"], func(x, y float64) float64 { return math.Log(y / x) }, math.Log(1.5), "%v: seconds between tokens", r.Shape)
}

type brackets struct{ within, ttft, tpot between }

// bracket recomputes also for a tenth less and more of the load, because results are sensitive near a width's limit.
func (c *widthChecker) bracket(w *wide, shapes []kernels.Shape, o policy.WidthOptions, first, each float64) brackets {
	var out brackets
	for i, times := range []float64{1, .9, 1.1} {
		c.times = times
		within, ttft, tpot := c.replayed(w, shapes, o.Window, o.Chunk, first, each)
		one := brackets{between{within, within}, between{ttft, ttft}, between{tpot, tpot}}
		if i == 0 {
			out = one
		}
		out = brackets{out.within.and(one.within), out.ttft.and(one.ttft), out.tpot.and(one.tpot)}
	}
	return out
}

// modeFirst reports whether the width's policy changes the mode of the active width.
func modeFirst(d policy.Decision) bool {
	return strings.HasPrefix(d.Why.Text, "The mode changes first, because this requires no new pod. ")
}

// steady finds the steady state of a world in a shape by iterating over step times: the step time that equals the time
// of the arrivals during it.
func (c *widthChecker) steady(w *wide, shape kernels.Shape, rate, chunk float64) (use, each float64) {
	const prompt, output = 1500.0, 100.0
	room := float64(w.tokens(shape)) / (prompt + output)
	step := func(decode, prefill float64) float64 { return c.seconds(shape, decode, prefill) }
	full := chunk * float64(shape.Ranks)
	for each = 1e-4; each < 10; each *= 1.002 {
		if step(min(rate*output*each, room), min(max(rate*prompt*each, 1), full)) <= each {
			break
		}
	}
	use = max(rate*prompt*step(min(rate*output*each, room), full)/full, rate*output*each/room)
	return use, each
}

// seconds of a step, with the context of the present requests.
func (c *widthChecker) seconds(shape kernels.Shape, decode, prefill float64) float64 {
	const prompt, output = 1500, 100
	context := prompt + output/2
	if c.before.Decoding > 0 {
		context = c.before.ContextTokens / c.before.Decoding
	}
	w := costmodel.Work{Decode: max(int(decode+.5), 1), Context: context, Prefill: int(prefill)}
	if w.Prefill > 0 {
		w.Before = prompt / 4
	}
	e, _, err := c.model.Borrowed(shape, w)
	require.NoError(c.t, err)
	return e.Seconds
}
