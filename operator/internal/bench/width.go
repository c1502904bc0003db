package bench

import (
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"tangram.dev/operator/internal/simcli"
	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/policy"
	"tangram.dev/operator/pkg/simulator"
)

const (
	widthModel   = "Qwen3-30B-A3B"
	widthMemory  = 48e9 // bytes per rank: three ranks hold the model and the repair headroom
	widthRouting = "power_law_1.2"
	widthLeast   = 3
	widthMost    = 8
	quantum      = 4    // ranks of a replica
	rankTokens   = 2048 // tokens per step and rank, as engines set it
	podSeconds   = 60.0 // for pods of the world and of replicas
)

// widthSLO is the SLO of the example in docs/simulator.md, except TPOT: no width keeps 50 ms while it computes prompts.
var widthSLO = policy.SLO{TTFT: 2, TPOT: .1, Share: .9}

// widthLoad is a load for one engine's kernels.
type widthLoad struct {
	name, engine string
	requests     []simulator.Request
}

// codeTimes is the largest multiple of the code trace for which a static world of eight ranks keeps the SLO. At twenty
// times, none keeps it for a tenth of the requests.
var codeTimes = map[string]int{"trtllm": 5, "vllm": 4, "sglang": 3}

// dayOf is a day's shape in `seconds` seconds: four times the load at noon as at night, minutes that differ, and two
// bursts. At its peak, the steps of eight ranks are `full`.
func dayOf(truth *kernels.Step, seconds, full float64, seed uint64) []simulator.Request {
	const prompt, output = 1536, 192
	const chunk, decode = rankTokens, rankTokens * output / prompt // of a rank, at that rate
	ranks := truth.Shape().Ranks
	step := truth.Even(kernels.Load{Prefill: chunk, Chunks: truth.Chunk(0, chunk), Decode: decode, Context: decode * (prompt + output/2)}, (chunk+decode)*ranks)
	peak := full * float64(chunk) / prompt * float64(ranks) / step
	random := rand.New(rand.NewPCG(seed, 6))
	var rates []simulator.Rate
	level := 0.0
	const minute = 30
	for at := 0.0; at < seconds; at += minute {
		level = .8*level + .06*random.NormFloat64()
		rate := peak * (.625 - .375*math.Cos(2*math.Pi*at/seconds)) * math.Exp(level)
		if hour := at / seconds * 24; hour >= 7 && hour < 7.4 || hour >= 18 && hour < 18.4 {
			rate *= 1.4
		}
		rates = append(rates, simulator.Rate{Seconds: minute, PerSecond: rate})
	}
	return simulator.Generate(rates, prompt, output, seed)
}

// widthFigures are the results of one way to serve a load.
type widthFigures struct {
	Within    float64 `json:"within"`
	RankHours float64 `json:"rank_hours"`
	Changes   int     `json:"changes"`
	What      string  `json:"what,omitempty"`
}

func figuresOf(r simulator.Result, what string) widthFigures {
	return widthFigures{float64(r.Within) / float64(r.Requests), r.RankSeconds / 3600, len(r.Switches), what}
}

// better: of two that keep the SLO, fewer rank-hours; of two that do not, the higher share.
func (f widthFigures) better(o widthFigures) bool {
	holds, other := f.Within >= widthSLO.Share, o.Within >= widthSLO.Share
	switch {
	case holds != other:
		return holds
	case holds:
		return f.RankHours < o.RankHours
	}
	return f.Within > o.Within
}

// widthBench has what all loads of an engine share.
type widthBench struct {
	view          *geometry.View
	table         *kernels.Table
	engine        string
	ours, replica simulator.Config
	priors        []*kernels.Step
}

func newWidthBench(engine string) (*widthBench, error) {
	v, err := simcli.View(widthModel, widthMost)
	if err != nil {
		return nil, err
	}
	table, err := kernels.Open(widthModel)
	if err != nil {
		return nil, err
	}
	b := &widthBench{view: v, table: table, engine: engine}
	h := simulator.H200()
	h.Memory.RankBytes = widthMemory
	var shapes []kernels.Shape
	for n := widthLeast; n <= widthMost; n++ {
		shapes = append(shapes, kernels.Expert(n))
		prior, err := kernels.At(table, v, simcli.Other(engine), widthRouting, kernels.Expert(n))
		if err != nil {
			return nil, err
		}
		b.priors = append(b.priors, prior)
	}
	if b.ours, err = simulator.Build(v, table, engine, widthRouting, h, shapes...); err != nil {
		return nil, err
	}
	h.Memory.NoRepairHeadroom = true // a replica is never repaired
	if b.replica, err = simulator.Build(v, table, engine, widthRouting, h, kernels.Expert(quantum)); err != nil {
		return nil, err
	}
	b.ours.Start = quantum - widthLeast // both start with the same number of ranks
	for _, c := range []*simulator.Config{&b.ours, &b.replica} {
		c.Noise, c.Seed, c.TTFT, c.TPOT, c.Share, c.PodSeconds, c.RankTokens = .1, 1, widthSLO.TTFT, widthSLO.TPOT, widthSLO.Share, podSeconds, rankTokens
	}
	return b, nil
}

func (b *widthBench) policy(share float64) *policy.Width {
	o := policy.WidthDefaults()
	o.SLO, o.Min, o.Max, o.Startup = widthSLO, widthLeast, widthMost, podSeconds
	o.SLO.Share = share
	p := policy.NewWidth(o, costmodel.New(costmodel.Options{}, b.priors...))
	first := b.ours
	first.Modes = first.Modes[b.ours.Start : b.ours.Start+1] // other widths keep the other engine's table
	simulator.Calibrate(first, p)
	return p
}

// static simulates a constant number of ranks.
func (b *widthBench) static(ranks int, requests []simulator.Request) (widthFigures, []simulator.Answer, error) {
	c := b.ours
	c.Start = ranks - widthLeast
	r, err := simulator.Run(c, requests, policy.Static{}, nil)
	if err != nil {
		return widthFigures{}, nil, err
	}
	return figuresOf(r, fmt.Sprintf("%d ranks", ranks)), r.Answers, nil
}

// never is a scaler that never scales.
type never struct{}

func (never) Every() float64               { return math.Inf(1) }
func (never) Scale(simulator.Replicas) int { return 0 }

func (b *widthBench) load(name string, seconds float64) widthLoad {
	if name == "day" {
		return widthLoad{name, b.engine, dayOf(b.ours.Modes[widthMost-widthLeast].Truth, seconds, .7, 11)}
	}
	code, err := simulator.Code()
	if err != nil {
		panic(err) // it is embedded, and tests read it
	}
	times := codeTimes[b.engine]
	return widthLoad{fmt.Sprintf("code x %d", times), b.engine, simulator.Times(code.Requests, times, 1)}
}

// Width simulates Azure's code trace and a generated day on three engines' kernels. It compares the width policy (3 to
// 8 ranks of one world) with scalers of replicas (one or two worlds of 4 ranks). The scalers have the best parameters
// of a grid for the same load.
func Width(out, progress io.Writer, quick bool) error {
	on, seconds := engines, 3600.0
	if quick {
		on, seconds = []string{"trtllm"}, 1800
	}
	begin := time.Now()
	worst, gap, same, holds, cases := 0.0, math.Inf(1), 0.0, math.Inf(1), 0
	for _, engine := range on {
		b, err := newWidthBench(engine)
		if err != nil {
			return fmt.Errorf("width: %s: %w", engine, err)
		}
		for _, name := range []string{"code", "day"} {
			l := b.load(name, seconds)
			c, err := b.compare(l, quick)
			if err != nil {
				return fmt.Errorf("width: %s on %s: %w", l.name, engine, err)
			}
			if err := printLine(out, c.json(l)); err != nil {
				return err
			}
			cases++
			worst, gap = max(worst, c.as.RankHours/c.best.RankHours), min(gap, c.as.Within-c.best.Within)
			same, holds = max(same, c.ours.RankHours/c.best.RankHours), min(holds, c.ours.Within)
			if _, err := fmt.Fprintf(progress, "width: %s on %s: ours %.4f within at %.2f rank-hours, asked for as much as the best scaler %.4f at %.2f; best of %d scalers %.4f at %.2f (%s, %s); known ahead %.4f at %.2f; %.0f s\n",
				l.name, engine, c.ours.Within, c.ours.RankHours, c.as.Within, c.as.RankHours, c.tried, c.best.Within, c.best.RankHours, c.kind, c.best.What, c.ahead.Within, c.ahead.RankHours, time.Since(begin).Seconds()); err != nil {
				return err
			}
		}
	}
	return printLine(out, Summary{Bench: "width", Value: worst, Unit: "rank-hours over those of the best scaler of replicas, asked for the attainment that it has, the worst case", Ceiling: 1, Ratio: worst,
		Env: environment(quick), Metrics: map[string]any{"attainment_over_best": gap, "same_slo_rank_hours_over_best": same, "same_slo_least_within": holds, "cases": cases,
			"seconds": time.Since(begin).Seconds()}})
}

type compared struct {
	best   widthFigures
	kind   string
	ours   widthFigures // with the SLO's share as goal
	as     widthFigures // with the best scaler's share as goal
	kinds  map[string]widthFigures
	static map[string]widthFigures
	ahead  widthFigures // hindsight with the best scaler's share
	tried  int
}

func (c compared) json(l widthLoad) map[string]any {
	return map[string]any{"bench": "width", "load": l.name, "truth": l.engine, "prior": simcli.Other(l.engine), "requests": len(l.requests), "slo": widthSLO, "ours": c.ours,
		"ours_asked_for_theirs": c.as, "best_scaler": c.kind, "best": c.best, "best_of_each": c.kinds, "static": c.static, "hindsight": c.ahead, "grid": c.tried,
		"rank_hours_over_best": c.as.RankHours / c.best.RankHours, "within_over_best": c.as.Within - c.best.Within}
}

// asked simulates the policy with a share of the answers as its goal.
func (b *widthBench) asked(share float64, requests []simulator.Request) (widthFigures, error) {
	c := b.ours
	c.Share = share
	r, err := simulator.Run(c, requests, b.policy(share), nil)
	if err != nil {
		return widthFigures{}, err
	}
	return figuresOf(r, fmt.Sprintf("asked for %.1f %%", 100*share)), nil
}

func (b *widthBench) compare(l widthLoad, quick bool) (compared, error) {
	c := compared{kinds: map[string]widthFigures{}, static: map[string]widthFigures{}}
	var widths []int
	var answers [][]simulator.Answer
	for n := widthLeast; n <= widthMost; n++ {
		f, all, err := b.static(n, l.requests)
		if err != nil {
			return c, err
		}
		c.static[fmt.Sprint(n)] = f
		widths, answers = append(widths, n), append(answers, all)
	}
	grid := scalerGrid(b.replica.Modes[0].Truth, quantum*rankTokens, widthSLO.TTFT, widthSLO.TPOT, quick)
	figures, errs := make([]widthFigures, len(grid)), make([]error, len(grid))
	var running sync.WaitGroup
	turns := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, g := range grid {
		turns <- struct{}{}
		running.Go(func() {
			defer func() { <-turns }()
			r, err := simulator.RunReplicas(b.replica, l.requests, 1, widthMost/quantum, g.make())
			figures[i], errs[i] = figuresOf(r, g.what), err
		})
	}
	running.Wait()
	if err := errors.Join(errs...); err != nil {
		return c, err
	}
	for i, g := range grid {
		f := figures[i]
		if was, there := c.kinds[g.kind]; !there || f.better(was) {
			c.kinds[g.kind] = f
		}
		if c.tried == 0 || f.better(c.best) {
			c.best, c.kind = f, g.kind
		}
		c.tried++
	}
	c.ahead = hindsight(widths, answers, c.best.Within)
	for _, n := range []int{1, widthMost / quantum} { // for comparison only: no scaler
		r, err := simulator.RunReplicas(b.replica, l.requests, n, n, never{})
		if err != nil {
			return c, err
		}
		c.static[fmt.Sprintf("%d replicas of %d", n, quantum)] = figuresOf(r, "")
	}
	var err error
	if c.ours, err = b.asked(widthSLO.Share, l.requests); err != nil {
		return c, err
	}
	if c.as = c.ours; c.best.Within > widthSLO.Share {
		c.as, err = b.asked(min(c.best.Within, .99), l.requests)
	}
	return c, err
}
