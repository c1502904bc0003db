package simcli

import (
	"fmt"
	"slices"

	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/policy"
	"tangram.dev/operator/pkg/simulator"
)

// Width is the width to decide, as in spec.autoscaling.
type Width struct {
	Min, Max   int // ranks; Max 0: the initial number
	Mode       string
	SLO        policy.SLO
	PodSeconds float64 // from the request of a pod until its rank is ready
	Standby    int     // ranks
}

// ModeAuto lets the policy decide the mode too.
const ModeAuto = "Auto"

// rankTokens is the maximum number of tokens per step and rank where widths differ, as engines set it.
const rankTokens = 2048

// Asked reports whether answers have an SLO.
func (w Width) Asked() bool { return w.SLO.TTFT > 0 || w.SLO.TPOT > 0 }

// widthAsked returns the checked options, with the kinds of shapes that the policy chooses from.
func (o Options) widthAsked() (policy.WidthOptions, []kernels.Kind, error) {
	w := o.Width
	p := policy.WidthDefaults()
	p.SLO, p.Min, p.Max = w.SLO, w.Min, w.Max
	if p.Max == 0 {
		p.Max = o.Ranks
	}
	if !(w.PodSeconds >= 0 && w.PodSeconds < 1e5) || w.Standby < 0 || w.Standby > p.Max {
		return p, nil, fmt.Errorf("--pod-seconds is %v and --standby is %d; want at least 0 each, and --standby at most --max-ranks %d", w.PodSeconds, w.Standby, p.Max)
	}
	if p.Startup = w.PodSeconds; p.Startup == 0 {
		p.Startup = p.Joining
	}
	if err := p.Check(); err != nil {
		return p, nil, fmt.Errorf("--min-ranks, --max-ranks, --ttft, --tpot, --attainment: %w", err)
	}
	if err := CheckRanks("--max-ranks", p.Max); err != nil {
		return p, nil, err
	}
	if o.Ranks < p.Min || o.Ranks > p.Max {
		return p, nil, fmt.Errorf("--ranks is %d; want a number between --min-ranks %d and --max-ranks %d", o.Ranks, p.Min, p.Max)
	}
	kinds, err := o.kinds()
	if err != nil {
		return p, nil, err
	}
	switch w.Mode {
	case "ExpertParallel":
		return p, kinds[:1], nil
	case "TensorParallel":
		return p, kinds[1:2], nil
	case ModeAuto:
		return p, kinds, nil
	}
	return p, nil, fmt.Errorf("--mode is %q; want ExpertParallel, TensorParallel or %s", w.Mode, ModeAuto)
}

// widths builds the world with all its shapes, from o.Ranks on. refused lists the shapes that cannot be simulated.
func (o Options) widths() (c simulator.Config, priors []*kernels.Step, refused []string, err error) {
	asked, kinds, err := o.widthAsked()
	if err != nil {
		return c, nil, nil, err
	}
	v, table, err := Tables(o.Model, asked.Max)
	if err != nil {
		return c, nil, nil, err
	}
	var shapes []kernels.Shape
	start := -1
	for n := asked.Min; n <= asked.Max; n++ {
		for i, k := range kinds {
			shape := k.On(n)
			if slices.Contains(shapes, shape) {
				continue // one rank has one mode
			}
			prior, err := kernels.At(table, v, o.prior(), o.Routing, shape)
			if err != nil && i > 1 { // a hybrid
				refused = append(refused, fmt.Sprintf("%v: %v", shape, err))
				continue
			}
			if err != nil {
				return c, nil, nil, fmt.Errorf("--max-ranks, --prior: %w", err)
			}
			if _, err := simulator.Build(v, table, o.Truth, o.Routing, o.hardware(), shape); err != nil {
				refused = append(refused, fmt.Sprintf("%v: %v", shape, err))
				continue
			}
			if n == o.Ranks && start < 0 {
				start = len(shapes)
			}
			shapes, priors = append(shapes, shape), append(priors, prior)
		}
	}
	if start < 0 {
		return c, nil, refused, fmt.Errorf("the world cannot start with --ranks %d: %s", o.Ranks, refused[len(refused)-1])
	}
	if c, err = simulator.Build(v, table, o.Truth, o.Routing, o.hardware(), shapes...); err != nil {
		return c, nil, refused, err
	}
	o.common(&c)
	c.Start, c.PodSeconds, c.Standby = start, o.Width.PodSeconds, o.Width.Standby
	return c, priors, refused, nil
}

// PlayWidth simulates the width policy, and in mode Auto also the mode policy. They are calibrated in all modes of the
// initial width; for other widths they use the prior table. `say` receives each shape that cannot be simulated.
func (w *World) PlayWidth(say func(refused string), progress func(at float64, left int)) (simulator.Result, error) {
	o, _, err := w.o.widthAsked()
	if err != nil {
		return simulator.Result{}, err
	}
	c, priors, refused, err := w.o.widths()
	for _, r := range refused {
		say(r)
	}
	if err != nil {
		return simulator.Result{}, err
	}
	var p policy.Policy = policy.NewWidth(o, costmodel.New(costmodel.Options{}, priors...))
	if w.o.Width.Mode == ModeAuto {
		of := policy.Defaults()
		of.RankChunk = rankTokens
		p = policy.NewJoint(o, of, costmodel.New(costmodel.Options{}, priors...))
	}
	first := c
	first.Modes = slices.DeleteFunc(slices.Clone(c.Modes), func(m simulator.Mode) bool { return m.Truth.Shape().Ranks != w.o.Ranks })
	simulator.Calibrate(first, p)
	return simulator.Run(c, w.Requests, p, progress)
}
