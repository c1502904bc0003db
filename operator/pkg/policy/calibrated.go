package policy

import (
	"fmt"
	"math"

	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/kernels"
)

// Options of the calibrated policy.
type Options struct {
	Cooldown  float64 // seconds after a switch without another one
	PerHour   float64 // maximum switches in any hour
	Margin    float64 // minimum savings after payback, times the stall's cost: for effects outside the fluid model
	Deviation float64 // assumed error of the model against the switch, in standard deviations
	Wrong     float64 // further assumed relative error of a shape's speed, because the fluid is not a world
	Chunk     float64 // tokens of a step of the engines, all ranks together
	RankChunk float64 // above 0: of each rank, instead of Chunk
	Smooth    float64 // seconds over which lengths of prompts and responses are averaged
}

// Defaults of the options.
func Defaults() Options {
	return Options{Cooldown: 5, PerHour: 60, Margin: 1, Deviation: 1, Wrong: .02, Chunk: 8192, Smooth: 60}
}

// Calibrated switches if the expected savings of a shape until the next change of load exceed the cost of the switch.
type Calibrated struct {
	o     Options
	model *costmodel.Model
	guard guard

	before   Telemetry
	seen     bool
	arrivals detector
	lengthsSeen
	switched []float64
	shape    kernels.Shape // at the last call, or decided on since
}

// NewCalibrated returns a policy over a model of the steps.
func NewCalibrated(o Options, m *costmodel.Model) *Calibrated {
	return &Calibrated{o: o, model: m}
}

// Observe a step; the model ignores invalid measurements.
func (p *Calibrated) Observe(s kernels.Shape, w costmodel.Work, seconds float64) {
	_ = p.model.Observe(s, w, seconds) // a rejected step changes nothing
}

// Decide by the future cost of each shape.
func (p *Calibrated) Decide(t Telemetry, s State) Decision {
	before, had := p.before, p.seen
	if wrong := p.guard.check(t, s); wrong != "" {
		p.before, p.seen = t, true
		return hold(s, "No decision was made: %s.", wrong)
	}
	p.before = t
	if !had {
		return hold(s, "No decision was made: this is the first report.")
	}
	sudden := p.learn(before, t)
	if was := p.shape; was.Ranks > 1 && s.Shape.Ranks > 1 && was.Kind() != s.Shape.Kind() {
		p.switched = append(p.switched, t.At) // switched by another policy, such as that of the width; it counts too
	}
	p.shape = s.Shape
	if s.Busy {
		return hold(s, "No decision was made: a transition is in progress.")
	}
	if s.Pods.Wanted.Ranks > 0 {
		return hold(s, "No decision was made: pods are starting.")
	}
	own := s.option(s.Shape)
	if own == nil {
		return hold(s, "No decision was made: the active shape %v is not an option of this world.", s.Shape)
	}
	if p.prompt == 0 || p.output == 0 && t.Generated == 0 { // the first responses report their length so far
		return stay(s, "No request has received a token yet, so the demand is unknown.", nil)
	}
	return p.weigh(t, s, own, sudden)
}

// learn updates the load from the change since the previous report. True: its rate changed suddenly.
func (p *Calibrated) learn(before, t Telemetry) bool {
	seconds := t.At - before.At
	sudden := p.arrivals.add(float64(t.Arrived-before.Arrived), seconds)
	p.add(before, t, p.o.Smooth*p.arrivals.rate)
	return sudden
}

func blend(mean *float64, value, weight float64) {
	if *mean == 0 {
		*mean = value
		return
	}
	*mean += (value - *mean) * min(weight, 1)
}

func (p *Calibrated) weigh(t Telemetry, s State, own *Option, sudden bool) Decision {
	var all []kernels.Shape
	for _, o := range s.Options {
		all = append(all, o.Shape)
	}
	horizon, chunk := p.arrivals.horizon(), p.o.Chunk
	if p.o.RankChunk > 0 {
		chunk = p.o.RankChunk * float64(s.Shape.Ranks)
	}
	context := p.prompt + p.output/2
	if t.Decoding > 0 {
		context = float64(t.ContextTokens) / float64(t.Decoding)
	}
	// In traffic with long tails, requests that run longer than ended ones are at half of their length. Waiting and
	// future requests are like ended ones.
	output := max(p.output, 1)
	if long := float64(t.Generated) / float64(max(t.Decoding, 1)); long > output {
		decoding, others := float64(t.Decoding), float64(t.Running-t.Decoding+t.Waiting)+p.arrivals.rate*horizon
		if p.output == 0 {
			others = 0
		}
		output = (decoding*long + others*output) / max(decoding+others, 1)
	}
	base := fluid{decoding: float64(t.Decoding), queued: float64(t.QueuedTokens), waiting: float64(t.Running - t.Decoding + t.Waiting), context: context,
		rate: p.arrivals.rate, prompt: max(p.prompt*(1-p.reused), 1), output: output, chunk: chunk, clump: max(p.arrivals.clumped, 1),
		longer: 1 + p.variance/(p.prompt*p.prompt)}
	base.room = float64(own.WorldTokens) / (p.prompt + p.output)
	// The remainder at the horizon is served at the speed of the fastest shape, for any shape before it.
	cost := func(f fluid, shape kernels.Shape, deviations, stall float64) float64 {
		inside, left := f.cost(shape, p.speed(deviations), stall, horizon)
		return inside + left.rest(all, p.speed(0))
	}
	stays := cost(base, s.Shape, 0, 0)
	stuck := cost(base, s.Shape, -p.o.Deviation, 0)
	live := t.ContextTokens
	figures := map[string]float64{"stay": stays, "horizon": horizon, "rate": base.rate, "prompt": p.prompt, "output": p.output, "reused": p.reused,
		"requests": float64(t.Running + t.Waiting)}
	best := Decision{To: s.Shape}
	var rejected []Rejected
	saved := 0.0
	for _, o := range s.Options {
		if o.Shape == s.Shape {
			continue
		}
		reject := func(text string, f map[string]float64) {
			rejected = append(rejected, Rejected{o.Shape, Reason{text, f}})
		}
		if no := o.refusal(t); no != nil {
			reject(no.Text, no.Figures)
			continue
		}
		there := base
		there.room = float64(o.WorldTokens) / (p.prompt + p.output)
		there.prompt = max(p.prompt, 1) // cached prefixes without a live request are not migrated
		stall, _ := s.Rates.Stall(o.Switch, live, 0)
		goes := cost(there, o.Shape, 0, stall)
		slow := cost(there, o.Shape, p.o.Deviation, stall)
		f := map[string]float64{"stay": stays, "switch": goes, "saves": stays - goes, "deviation": (stays - stuck) + (slow - goes), "stall": stall,
			"horizon": horizon, "margin": p.o.Margin * stall * (base.decoding + base.waiting) / max(1-float64(p.recent(t.At))/p.o.PerHour, .01)}
		_, known, err := p.model.Borrowed(o.Shape, there.work(0))
		switch {
		case err != nil || math.IsNaN(goes+stays+slow+stuck):
			reject("The cost model gives no cost for this shape.", f)
		case !known:
			reject("The step time of this shape is not known yet.", f)
		case f["saves"] <= f["deviation"]+f["margin"]:
			reject("The saving does not exceed the possible error of the estimate plus the margin.", f)
		case f["saves"] <= saved:
			reject("Another shape saves more.", f)
		default:
			saved = f["saves"]
			text := fmt.Sprintf("The current shape would take %.0f request-seconds in the next %.0f s, the new shape %.0f including the switch (stall %.2f s).", stays, horizon, goes, stall)
			if sudden {
				text = "The load changed suddenly. " + text
			}
			best = Decision{Switch: true, To: o.Shape, Why: Reason{text, f}}
		}
	}
	best.Rejected = rejected
	if !best.Switch {
		best.Why = Reason{"No other shape is worth a switch.", figures}
		return best
	}
	if s.DryRun {
		return best
	}
	if why, f := p.tooSoon(t.At); why != "" {
		to := best.To
		return Decision{To: s.Shape, Withheld: true, Why: Reason{why, f}, Rejected: append(rejected, Rejected{to, Reason{why, f}})}
	}
	p.switched, p.shape = append(p.switched, t.At), best.To
	return best
}

// tooSoon checks a switch against earlier ones.
func (p *Calibrated) tooSoon(at float64) (string, map[string]float64) {
	n := p.recent(at)
	if n > 0 && at-p.switched[n-1] < p.o.Cooldown {
		return "A switch would pay off, but the last switch is too recent.", map[string]float64{"since": at - p.switched[n-1], "cooldown": p.o.Cooldown}
	}
	if float64(n) >= p.o.PerHour {
		return "A switch would pay off, but the limit of switches per hour is reached.", map[string]float64{"switches": float64(n), "most": p.o.PerHour}
	}
	return "", nil
}

// recent counts switches in the last hour. The more there were, the more the next must gain.
func (p *Calibrated) recent(at float64) int {
	for len(p.switched) > 0 && p.switched[0] < at-3600 {
		p.switched = p.switched[1:]
	}
	return len(p.switched)
}

// speed by the model, this many deviations slower. NaN for a shape without a prior.
func (p *Calibrated) speed(deviations float64) speed {
	return func(s kernels.Shape, w costmodel.Work) float64 {
		e, _, err := p.model.Borrowed(s, w)
		if err != nil {
			return math.NaN()
		}
		return max(e.Seconds+deviations*(e.Deviation+p.o.Wrong*e.Seconds), e.Seconds/4)
	}
}
