package policy

import (
	"fmt"
	"math"
	"slices"

	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/kernels"
)

// SLO of the responses: seconds (0: no limit), and the share of responses that must meet them.
type SLO struct{ TTFT, TPOT, Share float64 }

func (s SLO) kept(first, each float64) bool {
	return (s.TTFT == 0 || first <= s.TTFT) && (s.TPOT == 0 || each <= s.TPOT)
}

// Check that the SLO is valid.
func (s SLO) Check() error {
	for _, v := range []float64{s.TTFT, s.TPOT} {
		if !(v >= 0) || math.IsInf(v, 0) {
			return fmt.Errorf("policy: invalid SLO: TTFT %v s, TPOT %v s", s.TTFT, s.TPOT)
		}
	}
	if s.TTFT == 0 && s.TPOT == 0 {
		return fmt.Errorf("policy: an SLO needs a TTFT or a TPOT")
	}
	if !(s.Share > 0 && s.Share < 1) {
		return fmt.Errorf("policy: invalid share of answers %v; the share must be above 0 and below 1", s.Share)
	}
	return nil
}

// WidthOptions of the policy of the width.
type WidthOptions struct {
	SLO      SLO
	Min, Max int     // ranks
	Startup  float64 // seconds from the request for a pod until its ranks are ready, until measured
	Joining  float64 // seconds from the request for standby ranks until they serve
	Window   float64 // seconds of the past for which a width must have met the SLO, because bursts recur
	Margin   float64 // share of responses by which a narrower width must exceed the target
	Use      float64 // maximum use of a width's steps at the forecast rate
	Spare    float64 // the same for a narrower width
	Gain     float64 // increase of a forecast's certainty per share of responses missed
	Account  float64 // seconds over which the SLO is averaged: losses within them are compensated
	Cooldown float64 // seconds since any change before the world gets narrower; each wrong such change doubles it
	Patience float64 // seconds to wait for pods without room in the cluster; then the world is as wide as they allow
	Again    float64 // seconds until more pods are requested after that
	Chunk    float64 // maximum tokens of a step, of each rank
	Every    float64 // seconds between two evaluations of all widths
	Smooth   float64 // seconds over which lengths of prompts and responses are averaged
}

// WidthDefaults returns defaults for all but SLO, Min and Max.
func WidthDefaults() WidthOptions {
	return WidthOptions{Startup: 60, Joining: 1, Window: 900, Margin: .02, Use: .95, Spare: .85, Gain: 4, Account: 3600, Cooldown: 60, Patience: 60, Again: 300, Chunk: 2048, Every: 5, Smooth: 60}
}

// Check the options. The error names the invalid one.
func (o WidthOptions) Check() error {
	if err := o.SLO.Check(); err != nil {
		return err
	}
	if o.Min < 1 || o.Max < o.Min {
		return fmt.Errorf("policy: from %d to %d ranks: the minimum must be at least 1 and at most the maximum", o.Min, o.Max)
	}
	return nil
}

// Causes of the policy of the width.
const (
	OutOfReach   Cause = "SLOOutOfReach"     // no width holds the SLO, even without load
	Contradicted Cause = "ModelContradicted" // the cost model contradicts the measurements
)

// Width decides the number of ranks of a world: the minimum that meets the SLO, in the mode that can. It considers only
// modes with options: if all options have the active mode, it stays.
type Width struct {
	o     WidthOptions
	model *costmodel.Model
	guard guard

	before   Telemetry
	seen     bool
	arrivals detector
	load     lengthsSeen
	contexts contexts
	past     past
	ahead    forecasts // for the time when pods would have started
	soon     forecasts // for the time when standby ranks would serve
	account  account
	first    correction
	each     correction
	shape    kernels.Shape // active shape
	since    float64       // start of that shape
	width    float64       // start of the current number of ranks
	against  against
	changed  float64 // time of the last decision on the width
	ever     bool
	cooldown float64
	narrowed float64 // time of the last decision for a narrower width; 0: never
	said     said
	short    float64 // last time without room in the cluster; 0: never
	allowed  int     // ranks with room then
}

// NewWidth returns a policy over a model of the steps in all possible shapes.
func NewWidth(o WidthOptions, m *costmodel.Model) *Width {
	return &Width{o: o, model: m, past: past{keep: o.Window}, ahead: forecasts{keep: o.Window}, soon: forecasts{keep: o.Window}, account: account{keep: o.Account}, first: correction{1, 0}, each: correction{1, 0}, cooldown: o.Cooldown}
}

// Observe a step; the model ignores invalid measurements.
func (p *Width) Observe(s kernels.Shape, w costmodel.Work, seconds float64) {
	_ = p.model.Observe(s, w, seconds) // a rejected step changes nothing
}

// correction of replayed latencies by client latencies: the mean of the ratios, over some minutes.
type correction struct {
	factor float64
	weight float64
}

const (
	mostWrong  = 4.0  // beyond this or its inverse, the model contradicts the measurements
	correctBy  = .02  // weight of a ratio, at each reading
	fewAnswers = 20   // too few for a quantile
	recently   = 60.0 // period of Felt, seconds
	lately     = 10.0 // minimum seconds for a rate
	stillQueue = .9   // above this use of the steps, a ratio of waits does not measure the model
)

func (c *correction) add(felt, played float64) {
	if !(felt > 0 && played > 0) {
		return
	}
	c.weight = min(c.weight+1, 1/correctBy)
	c.factor *= math.Exp(math.Log(min(max(felt/played, 1/(2*mostWrong)), 2*mostWrong)/c.factor) / c.weight)
}

func (c *correction) contradicts() bool {
	return c.weight >= 1/correctBy && (c.factor > mostWrong || c.factor < 1/mostWrong)
}

// Decide on the fewest ranks that meet the SLO.
func (p *Width) Decide(t Telemetry, s State) Decision {
	before, had := p.before, p.seen
	wrong := p.guard.check(t, s)
	p.before, p.seen = t, true
	if wrong == "" && !t.Felt.sane() {
		wrong = fmt.Sprintf("the client latencies are invalid: %+v", t.Felt)
	}
	if wrong != "" {
		return hold(s, "No decision was made: %s.", wrong)
	}
	if !had {
		return hold(s, "No decision was made: this is the first report.")
	}
	seconds := t.At - before.At
	p.arrivals.add(float64(t.Arrived-before.Arrived), seconds)
	p.load.add(before, t, p.o.Smooth*p.arrivals.rate)
	p.contexts.add(t, seconds, p.o.Smooth)
	p.past.add(second{t.At, seconds, float64(t.Arrived - before.Arrived),
		max(0, float64(t.PromptTokens-before.PromptTokens)-float64(t.ReusedTokens-before.ReusedTokens))})
	if s.Shape.Ranks != p.shape.Ranks {
		p.width = t.At
	}
	if s.Shape != p.shape {
		p.shape, p.since = s.Shape, t.At
	}
	p.account.add(t.At, t.Felt)
	if s.Busy {
		return hold(s, "No decision was made: a transition is in progress.")
	}
	own := s.option(s.Shape)
	if own == nil {
		return hold(s, "No decision was made: the active shape %v is not an option of this world.", s.Shape)
	}
	if !p.load.known() {
		return stay(s, "No request has ended yet, so the demand is unknown.", nil)
	}
	if p.said.to == s.Shape && p.said.pods == s.Pods.Wanted && t.At-p.said.at < p.o.Every {
		return p.said.decision
	}
	d := p.weigh(t, s, own)
	if p.said = (said{}); !d.Switch {
		p.said = said{t.At, s.Shape, s.Pods.Wanted, d}
	}
	return d
}

// said is the last decision, if it was not to change anything.
type said struct {
	at       float64
	to, pods kernels.Shape
	decision Decision
}

func (f Felt) sane() bool {
	return f.Answers >= 0 && f.Within >= 0 && f.Within <= 1 && f.FirstToken >= 0 && f.PerToken >= 0 && !math.IsInf(f.FirstToken+f.PerToken, 0)
}

// verdict on a width in a mode.
type verdict struct {
	option *Option
	holds  bool       // meets the SLO
	spare  bool       // with a margin: the world may become this narrow
	keeps  bool       // keeps up with the rate, at the target TPOT; without the past, which all modes of a width share
	easily bool       // same with a margin
	ratios [3]float64 // actual over required, of each condition, the worst first; 1: met
	why    Reason
}

func (p *Width) weigh(t Telemetry, s State, own *Option) Decision {
	l := p.contexts.of(p.load.now(t))
	startup := p.o.Startup
	if s.Pods.Startup > 0 {
		startup = s.Pods.Startup
	}
	f := figuresNow{rate: p.rateFor(t.At, startup), clumped: max(p.arrivals.clumped, 1), attained: p.account.attained(p.o.SLO.Share)}
	// Losses must be compensated, and gains may be spent, within limits.
	owed := p.o.SLO.Share - f.attained
	f.asked = min(max(p.o.SLO.Share+owed, 1-2*(1-p.o.SLO.Share)), 1-(1-p.o.SLO.Share)/2)
	sure := min(max(p.o.SLO.Share+p.o.Gain*owed, .5), .99)
	f.forecast, f.headroom = p.foresee(&p.ahead, t.At, f.rate, startup, sure)
	soon := f
	soon.rate = p.rateFor(t.At, p.o.Joining)
	soon.forecast, soon.headroom = p.foresee(&p.soon, t.At, soon.rate, p.o.Joining, sure)
	standby := 0
	if s.Pods.Wanted.Ranks == 0 {
		standby = max(0, min(s.Pods.Standby, s.Pods.Ready-s.Shape.Ranks))
	}
	p.correct(t, l, own)
	p.against = against{}
	if p.first.contradicts() || p.each.contradicts() {
		d := hold(s, "No decision was made: the cost model contradicts the measurements. Times to the first token are %.2f times and times between tokens %.2f times the modelled values.",
			p.first.factor, p.each.factor)
		d.Cause = Contradicted
		return d
	}
	trials, rejected := p.trials(t, s, l, own)
	possible := false // without load
	var all []verdict
	for _, one := range trials {
		v, err := p.judge(one, l, f)
		if standby > 0 {
			v, err = p.judgeWith(standby, one, trials, l, soon, f)
		}
		if err != nil {
			rejected = append(rejected, Rejected{one.option.Shape, Reason{"No decision was made: " + err.Error() + ".", nil}})
			continue
		}
		possible = possible || one.idle
		all = append(all, v)
	}
	if len(all) == 0 {
		return Decision{Held: true, To: s.Shape, Why: Reason{Text: fmt.Sprintf("No decision was made: no shape with %d to %d ranks is available.", p.o.Min, p.o.Max)}, Rejected: rejected}
	}
	slices.SortStableFunc(all, func(a, b verdict) int { return a.option.Shape.Ranks - b.option.Shape.Ranks })
	if !possible {
		for _, v := range all {
			rejected = append(rejected, Rejected{v.option.Shape, v.why})
		}
		return Decision{Held: true, Cause: OutOfReach, To: s.Shape, Rejected: rejected, Why: Reason{Text: fmt.Sprintf(
			"No decision was made: no number of ranks from %d to %d meets the SLO, even without load.", all[0].option.Shape.Ranks, all[len(all)-1].option.Shape.Ranks)}}
	}
	return p.choose(t, s, choice{all: all, now: p.modesNow(trials, s, l, soon)}, rejected)
}

// trials of all possible options; the others are rejected.
func (p *Width) trials(t Telemetry, s State, l lengths, own *Option) (trials []trial, rejected []Rejected) {
	wide := p.allowedNow(t, s)
	plays, modes := map[int][][]moment{}, map[kernels.Kind]bool{}
	for i := range s.Options {
		o := &s.Options[i]
		if o.Shape.Ranks < p.o.Min || o.Shape.Ranks > p.o.Max {
			continue
		}
		if no := o.refusal(t); no != nil && o != own {
			p.against.unseen = append(p.against.unseen, o.Shape)
			rejected = append(rejected, Rejected{o.Shape, *no})
			continue
		}
		if wide > 0 && o.Shape.Ranks > wide && o.Shape.Ranks > s.Shape.Ranks {
			rejected = append(rejected, Rejected{o.Shape, Reason{"The cluster has no room for the pods of this shape.", map[string]float64{"allowed": float64(wide), "ranks": float64(o.Shape.Ranks)}}})
			continue
		}
		if beyond := p.model.Beyond(o.Shape); (!alike(o.Shape, s.Shape) || beyond > 0) && o != own && !p.known(o.Shape, t, l) {
			rejected = append(rejected, Rejected{o.Shape, Reason{"The step times of this shape and of similar shapes are not known yet.", map[string]float64{"beyond": beyond}}})
			continue
		}
		m := p.machine(o, l)
		played := m.play(p.past.since(t.At-p.o.Window), l)
		plays[o.Shape.Ranks] = append(plays[o.Shape.Ranks], played)
		if o.Shape.Ranks > 1 { // one rank has no mode
			modes[o.Shape.Kind()] = true
		}
		trials = append(trials, trial{option: o, m: m, alone: together(p.o.SLO, played), idle: together(p.o.SLO, m.play([]second{{1, 1, 1, l.prompt}}, l)).Within > 0})
	}
	for i := range trials {
		one := &trials[i]
		one.felt, one.several = together(p.o.SLO, plays[one.option.Shape.Ranks]...), len(modes) > 1
	}
	return trials, rejected
}

// alike reports whether two shapes have the same mode.
func alike(a, b kernels.Shape) bool {
	return a.Ranks == 1 || b.Ranks == 1 || a.Kind() == b.Kind()
}

// known reports whether steps of a shape, or of another width in its mode, were measured.
func (p *Width) known(s kernels.Shape, t Telemetry, l lengths) bool {
	_, known, err := p.model.Borrowed(s, costmodel.Work{Decode: max(t.Decoding, 1), Context: max(int(l.context), 1)})
	return err == nil && known
}

// figuresNow are the figures that all widths share.
type figuresNow struct{ rate, clumped, forecast, headroom, attained, asked float64 }

// trial is the replay of the window on a width in a mode, and whether it meets the SLO without load.
type trial struct {
	option  *Option
	m       machine
	felt    playedLoad // in the best mode at each moment
	alone   playedLoad // in this mode
	idle    bool
	several bool // several modes are tried
}

// judge a width in a mode, by its trial and by the rate expected when pods have started.
func (p *Width) judge(one trial, l lengths, now figuresNow) (verdict, error) {
	o, m, felt := one.option, one.m, one.felt
	ready := max(now.rate, now.forecast*now.headroom)
	use, step := m.steady(ready, l)
	each := step * m.each
	f := map[string]float64{"ranks": float64(o.Shape.Ranks), "within": felt.Within, "asked": now.asked, "attained": now.attained, "ttft": felt.FirstToken, "tpot": felt.PerToken, "use": use,
		"each": each, "rate": now.rate, "clumped": now.clumped, "forecast": now.forecast, "headroom": now.headroom, "corrected": m.first, "corrected each": m.each, "requests": felt.requests}
	name := fmt.Sprintf("%d ranks", o.Shape.Ranks)
	if one.several {
		f["alone"] = one.alone.Within
		name = o.Shape.String()
	}
	for name, v := range f {
		if math.IsNaN(v) {
			return verdict{}, fmt.Errorf("the model gives no value for %s", name)
		}
	}
	v := verdict{option: o, ratios: [3]float64{min(1, felt.Within/now.asked), min(1, p.o.Use/max(use, 1e-9)), 1}}
	slow := p.o.SLO.TPOT > 0 && each > p.o.SLO.TPOT
	if slow {
		v.ratios[2] = p.o.SLO.TPOT / each
	}
	slices.Sort(v.ratios[:])
	v.keeps, v.easily = use <= p.o.Use && !slow, use <= p.o.Spare && !slow
	v.holds = felt.Within >= now.asked && v.keeps
	f["near"] = v.ratios[0]
	v.spare = v.holds && felt.Within >= now.asked+p.o.Margin*(1-p.o.SLO.Share)/.1 && v.easily
	text := fmt.Sprintf("With %s, %.1f %% of the answers of the last %.0f s would meet the SLO (target %.1f %%), and steps would be %.0f %% full at %.1f requests per second.", name,
		100*felt.Within, p.o.Window, 100*now.asked, 100*use, ready)
	v.why = Reason{text, f}
	return v, nil
}

// rateFor returns the rate for decisions `ahead` seconds ahead: the mean of the last minute, or that of its end if it
// is surely higher (minus two standard errors, for requests in clumps). It looks back at least as far as ahead: ten
// seconds of load may have ended in a minute.
func (p *Width) rateFor(at, ahead float64) float64 {
	rate := meanRate(p.past.since(at - recently))
	for w := recently - lately; w >= max(lately, ahead); w -= lately {
		m := meanRate(p.past.since(at - w))
		rate = max(rate, m-2*math.Sqrt(m*max(p.arrivals.clumped, 1)/w))
	}
	return rate
}

// foresee forecasts the rate `ahead` seconds from now, and the headroom that such forecasts needed.
func (p *Width) foresee(of *forecasts, now, rate, ahead, sure float64) (forecasted, headroom float64) {
	r := forecast(rate, p.past.since(now-max(2*ahead, 2*recently)), ahead)
	of.add(now, now+ahead, r, &p.past)
	return r, of.headroom(sure)
}

// judgeWith standby ranks: until they would serve, a width must hold the load itself; until pods could start, it must
// hold it with them.
func (p *Width) judgeWith(standby int, one trial, all []trial, l lengths, soon, later figuresNow) (verdict, error) {
	v, err := p.judge(one, l, soon)
	if err != nil {
		return v, err
	}
	with := one
	for _, w := range all {
		if n := w.option.Shape.Ranks; n > with.option.Shape.Ranks && n <= one.option.Shape.Ranks+standby && alike(w.option.Shape, one.option.Shape) {
			with = w
		}
	}
	then, err := p.judge(with, l, later)
	if err != nil {
		return v, err
	}
	v.holds, v.spare = v.holds && then.holds, v.spare && then.spare
	v.keeps, v.easily = v.keeps && then.keeps, v.easily && then.easily
	for i := range v.ratios {
		v.ratios[i] = min(v.ratios[i], then.ratios[i])
	}
	v.why.Figures["near"] = v.ratios[0]
	for _, name := range []string{"ranks", "within", "use", "each", "rate", "forecast", "headroom"} {
		v.why.Figures["then "+name] = then.why.Figures[name]
	}
	v.why.Text += fmt.Sprintf(" Including standby ranks: %s", then.why.Text)
	return v, nil
}

func (p *Width) machine(o *Option, l lengths) machine {
	return machine{shape: o.Shape, of: p.speed, chunk: p.o.Chunk * float64(o.Shape.Ranks), room: max(1, float64(o.WorldTokens)/(l.prompt+l.output)), first: p.first.factor, each: p.each.factor}
}

// speed of a step; for a shape without measurements, from the nearest measured one of its mode.
func (p *Width) speed(s kernels.Shape, w costmodel.Work) float64 {
	e, _, err := p.model.Borrowed(s, w)
	if err != nil {
		return math.NaN()
	}
	return e.Seconds
}

// correct replayed latencies by client latencies of this width while the steps are not full: a growing queue gives no
// information about the model.
func (p *Width) correct(t Telemetry, l lengths, own *Option) {
	if t.Felt.Answers < fewAnswers || t.At-p.since < 2*recently {
		return
	}
	m := p.machine(own, l)
	m.first, m.each = 1, 1
	if use, _ := m.steady(p.arrivals.rate, l); use > stillQueue {
		return
	}
	felt := together(p.o.SLO, m.play(p.past.since(t.At-recently), l))
	if felt.requests < fewAnswers {
		return
	}
	p.first.add(t.Felt.FirstToken, felt.FirstToken)
	p.each.add(t.Felt.PerToken, felt.PerToken)
}

// allowedNow is the number of ranks with room in the cluster; 0: no known limit.
func (p *Width) allowedNow(t Telemetry, s State) int {
	if s.Pods.Refused && s.Pods.Waiting >= p.o.Patience {
		p.short, p.allowed = t.At, max(s.Pods.Ready, s.Shape.Ranks)
	}
	if p.short == 0 || t.At-p.short >= p.o.Again {
		p.short = 0
		return 0
	}
	return p.allowed
}
