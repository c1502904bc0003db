package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
	"tangram.dev/operator/pkg/adviser"
	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/policy"
	"tangram.dev/operator/pkg/telemetry"
)

// The burst-real bench: the published requests per second, divided by the dilation of the table's seconds.
const (
	burstDilation = 20
	burstLeast    = 4
	burstMost     = 6
	burstKV       = 640 << 10 // the larger burst fits in ExpertParallel, the smaller one not in TensorParallel
	burstWeights  = 64 << 20
	burstPatience = 5 * time.Minute
	burstQuiet    = 5. / burstDilation
	burstOne      = 80. / burstDilation
	burstTwo      = 120. / burstDilation
	burstMeet     = 50 * time.Second
	burstStill    = time.Second
)

// burstPhase is a phase of a run: a rate for some seconds.
type burstPhase struct {
	name      string
	seconds   float64
	perSecond float64
}

func burstPhases() []burstPhase {
	if os.Getenv("QUICK") != "" {
		return []burstPhase{{"before", 15, burstQuiet}, {"burst of 80", 20, burstOne}, {"after", 15, burstQuiet}}
	}
	return []burstPhase{{"before", 40, burstQuiet}, {"burst of 80", 35, burstOne}, {"between", 40, burstQuiet}, {"burst of 120", 35, burstTwo}, {"after", 40, burstQuiet}}
}

// burstWay is a configuration that serves the same requests.
type burstWay struct {
	name   string
	start  kernels.Shape
	asks   bool
	widens bool
}

func burstWays() []burstWay {
	return []burstWay{
		{"ExpertParallel/4", kernels.Expert(burstLeast), false, false},
		{"TensorParallel/4", kernels.Tensor(burstLeast), false, false},
		{"Auto/4", kernels.Expert(burstLeast), true, false},
		{"Auto/4 to 6", kernels.Expert(burstLeast), true, true},
	}
}

// burstRun is the result of a way.
type burstRun struct {
	Way      string          `json:"way"`
	Felt     []felt          `json:"felt"`
	Switches []burstSwitched `json:"switches"`
	Overruns float64         `json:"overruns"` // share of the steps that took longer than in the table
	Refused  int             `json:"refused"`
	Lost     int             `json:"lost"`
	Grown    *burstGrown     `json:"grown,omitempty"`

	results  []*load.Result
	readings []reading
	start    time.Time
	still    time.Duration // longest time for which this process did not run
}

type burstSwitched struct {
	At      float64 `json:"at_seconds"`
	InForce float64 `json:"in_force_seconds"`
	From    string  `json:"from"`
	To      string  `json:"to"`
	Why     string  `json:"why"`
	Again   int     `json:"tried_in_vain"`

	from, to kernels.Shape
}

// burstReal bench: bursts by clients' clocks, in each fixed mode, and with mode and number of ranks chosen by the
// world.
func burstReal(ctx context.Context, o options) error {
	a, table, err := burstWorld(ctx, o)
	if err != nil {
		return err
	}
	defer a.w.Stop()
	lines := json.NewEncoder(os.Stdout)
	var runs []*burstRun
	discarded := 0
	for i, way := range burstWays() {
		if !strings.HasPrefix(way.name, o.only) {
			continue
		}
		r, again, err := playWayAlone(ctx, a, way, uint64(i))
		if err != nil {
			return fmt.Errorf("%s: %w", way.name, err)
		}
		discarded += again
		if way.widens {
			if r.Grown, err = grownBy(table, r); err != nil {
				return err
			}
			if g := r.Grown; g != nil {
				say("%s -> %s: a token took %.3f s before and %.3f s after, %.2f times; by the table %.3f and %.3f s, %.2f times", g.From, g.To, g.Each[0], g.Each[1], g.Found, g.Table[0], g.Table[1], g.Said)
			} else {
				say("%s: it did not grow", way.name)
			}
		}
		runs = append(runs, r)
		if err := lines.Encode(r); err != nil {
			return err
		}
	}
	if err := drawBursts(filepath.Join(o.out, "bursts.svg"), runs); err != nil {
		return err
	}
	if o.only != "" {
		return nil // no runs to compare with
	}
	summary := burstSummary(runs)
	summary["metrics"].(map[string]any)["discarded_runs"] = discarded //nolint:forcetypeassert // what it gives
	return lines.Encode(summary)
}

// playWayAlone runs a way, again if the machine stopped this process meanwhile.
func playWayAlone(ctx context.Context, a *autoWorld, way burstWay, seed uint64) (*burstRun, int, error) {
	for again := range realMostTries {
		say("%s", way.name)
		r, err := playWay(ctx, a, way, seed+uint64(again)*uint64(len(burstWays())))
		if err != nil {
			return nil, 0, err
		}
		if r.still < burstStill {
			return r, again, nil
		}
		say("%s: the machine stood still for %.1f s: discarded", way.name, r.still.Seconds())
	}
	return nil, 0, fmt.Errorf("the machine stood still in each of %d runs: others use it", realMostTries)
}

func burstWorld(ctx context.Context, o options) (*autoWorld, *kernels.Compiled, error) {
	checkpoint, err := harness.Checkpoint(ctx, o.root, "tiny")
	if err != nil {
		return nil, nil, err
	}
	path, table, err := paceFile(o, "trtllm", "balanced", burstMost)
	if err != nil {
		return nil, nil, err
	}
	w, err := harness.Start(ctx, harness.Options{Root: o.root, Dir: filepath.Join(o.out, "world"), Checkpoint: checkpoint, Pods: slices.Repeat([]int{1}, burstMost), Granule: 8, KV: burstKV,
		Memory: burstWeights, Rows: 256, Patience: time.Minute, EngineFlags: []string{"--pace", path, "--dilation", fmt.Sprint(burstDilation), "--kv-headroom", "0.1"}})
	return &autoWorld{w: w, ranks: burstMost, kv: burstKV, memory: costmodel.Memory{RankBytes: burstWeights + burstKV, SpareBanks: 3, NoRepairHeadroom: true}}, table, err
}

// playWay runs one way. The requests of all ways have the same lengths and arrival times, but other prompts, so that no
// prefix is reused.
func playWay(ctx context.Context, a *autoWorld, way burstWay, seed uint64) (*burstRun, error) {
	if err := a.begin(ctx, way.start); err != nil {
		return nil, err
	}
	client := &load.Client{URL: a.w.URL(), Model: a.w.Model(), HTTP: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 512}}, Patience: burstPatience}
	following, stop := make(chan error, 1), make(chan struct{})
	meeting := false
	if way.asks {
		var err error
		a.advice, err = adviser.New(adviser.Options{Policy: adviser.Calibrated, Prior: adviser.Prior{Model: pacedModel, Engine: "vllm", Routing: "balanced"}, // of another engine
			Width: adviser.Range{Min: burstLeast, Max: burstMost, Step: 1, Modes: true, SLO: policy.SLO{TTFT: 1, TPOT: 1, Share: .5}}})
		if err != nil {
			return nil, err
		}
		a.widens, meeting = way.widens, true
	}
	go func() { following <- a.follow(ctx, stop) }()
	if meeting {
		if err := meet(ctx, client, seed); err != nil {
			return nil, err
		}
	}
	r := &burstRun{Way: way.name, start: time.Now()}
	still, watched := watchStills(ctx)
	r.play(ctx, client, seed)
	still()
	r.still = <-watched
	close(stop)
	if err := <-following; err != nil {
		return nil, err
	}
	r.readings = a.readings
	for _, d := range a.decided {
		r.Switches = append(r.Switches, burstSwitched{d.at.Sub(r.start).Seconds(), d.inForce.Sub(r.start).Seconds(), d.from.String(), d.to.String(), d.why, d.again, d.from, d.to})
	}
	at := 0.
	for _, p := range burstPhases() {
		from := r.start.Add(time.Duration(at * float64(time.Second)))
		at += p.seconds
		f := feltIn(p.name, r.results, from, r.start.Add(time.Duration(at*float64(time.Second))))
		r.Felt = append(r.Felt, f)
		say("%s, %s: %d requests, TTFT %.2f %.2f s, TPOT %.3f %.3f s, %.0f tokens/s", way.name, p.name, f.Requests, f.TTFT50, f.TTFT99, f.TPOT50, f.TPOT99, f.TokensPerSecond)
	}
	for _, x := range r.results {
		r.Refused += len(x.Refused)
		if x.Err != nil {
			r.Lost++
			say("lost: %v", x.Err)
		}
	}
	if n := len(r.readings); n > 1 && r.readings[n-1].paced > r.readings[0].paced {
		r.Overruns = float64(r.readings[n-1].overruns-r.readings[0].overruns) / float64(r.readings[n-1].paced-r.readings[0].paced)
	}
	return r, nil
}

// meet introduces the load: few requests, until the world has tried both modes and chosen one. They do not count in any
// figure.
func meet(ctx context.Context, client *load.Client, seed uint64) error {
	few := &arrivals{seed: 1000 + seed, prompt: 100, answer: 30}
	few.rate(.5)
	stop, done := make(chan struct{}), make(chan []*load.Result, 1)
	go func() { done <- few.play(ctx, client, stop) }()
	if err := sleep(ctx, burstMeet); err != nil {
		return err
	}
	close(stop)
	<-done
	return nil
}

func (r *burstRun) play(ctx context.Context, client *load.Client, seed uint64) {
	times := &arrivals{seed: 1}
	random := times.random()
	lengths := &arrivals{seed: 7, prompt: 100, answer: 30}
	var at []float64
	begin := 0.
	for _, p := range burstPhases() {
		for t := begin + random.ExpFloat64()/p.perSecond; t < begin+p.seconds; t += random.ExpFloat64() / p.perSecond {
			at = append(at, t)
		}
		begin += p.seconds
	}
	r.results = make([]*load.Result, len(at))
	var wait sync.WaitGroup
	for i := range at {
		wait.Go(func() {
			request := lengths.at(i)
			request.Prompt = append([]uint32{uint32(1 + seed)}, request.Prompt...) // unique: no prefix is reused
			time.Sleep(time.Until(r.start.Add(time.Duration(at[i] * float64(time.Second)))))
			r.results[i] = client.Do(ctx, request)
		})
	}
	wait.Wait()
}

// burstGrown compares the time per token after the world had grown with that before, in the same burst.
type burstGrown struct {
	From  string     `json:"from"`
	To    string     `json:"to"`
	Each  [2]float64 `json:"each_seconds"`       // per token before and after, by clients' clocks
	Table [2]float64 `json:"table_each_seconds"` // of the executed steps, by the table
	Found float64    `json:"found"`
	Said  float64    `json:"said"`
	Error float64    `json:"error"`
}

// grownWindow is the length of the compared windows before and after, in seconds.
const grownWindow = 12.

// grownBy returns the median time between two tokens before and after the world first grew, and the same by the table
// for the executed steps: each token's step with the prompts computed in it.
func grownBy(table *kernels.Compiled, r *burstRun) (*burstGrown, error) {
	grows := func(s burstSwitched) bool { return s.At > 0 && s.to.Ranks > s.from.Ranks }
	i := slices.IndexFunc(r.Switches, grows)
	if i < 0 {
		return nil, nil //nolint:nilnil // it did not grow
	}
	last := i
	for last+1 < len(r.Switches) && grows(r.Switches[last+1]) && r.Switches[last+1].At < r.Switches[last].InForce+grownWindow {
		last++
	}
	before, after := r.Switches[i].At, r.Switches[last].InForce
	g := &burstGrown{From: r.Switches[i].From, To: r.Switches[last].To}
	for j, from := range []float64{before - grownWindow, after} {
		at := func(s float64) time.Time { return r.start.Add(time.Duration(s * float64(time.Second))) }
		g.Each[j] = medianGap(r.results, at(from), at(from+grownWindow))
		var said []weighed
		for _, x := range r.readings {
			if x.busy || x.at.Before(at(from)) || x.at.After(at(from+grownWindow)) {
				continue
			}
			step, err := table.Step(x.shape)
			if err != nil {
				return nil, err
			}
			for _, cell := range x.steps {
				said = append(said, weighed{tableSays(step, cell) * burstDilation, float64(cell.Decode)})
			}
		}
		g.Table[j] = weighedMedian(said)
	}
	if !(min(g.Each[0], g.Each[1], g.Table[0], g.Table[1]) > 0) {
		return nil, nil //nolint:nilnil // no token or no step in one of the windows: nothing to compare
	}
	g.Found, g.Said = g.Each[1]/g.Each[0], g.Table[1]/g.Table[0]
	g.Error = math.Abs(g.Found-g.Said) / g.Said
	return g, nil
}

// tableSays returns the table's duration of the mean step of a cell.
func tableSays(step *kernels.Step, cell telemetry.Steps) float64 {
	_, decode, context, prefill, before := cell.Mean()
	groups := step.Shape().Groups()
	each := func(n int) int { return (n + groups - 1) / groups }
	l := kernels.Load{Decode: each(decode), Prefill: each(prefill)}
	l.Context = l.Decode * context
	if l.Prefill > 0 {
		l.Chunks = step.Chunk(before, before+l.Prefill)
	}
	return step.Even(l, decode+prefill)
}

// weighed is a value with its weight.
type weighed struct{ value, weight float64 }

func weighedMedian(all []weighed) float64 {
	slices.SortFunc(all, func(a, b weighed) int { return cmp.Compare(a.value, b.value) })
	total := 0.
	for _, x := range all {
		total += x.weight
	}
	left := total / 2
	for _, x := range all {
		if left -= x.weight; left <= 0 {
			return x.value
		}
	}
	return math.NaN()
}

// medianGap returns the median time between two tokens of a request, for tokens that arrived in [from, to).
func medianGap(results []*load.Result, from, to time.Time) float64 {
	var gaps []float64
	for _, r := range results {
		for i := 1; i < len(r.Tokens); i++ {
			if t := r.Tokens[i].At; !t.Before(from) && t.Before(to) {
				gaps = append(gaps, t.Sub(r.Tokens[i-1].At).Seconds())
			}
		}
	}
	return quantileOf(gaps, .5)
}

// burstSummary returns, per phase, the 99th percentile of the time to the first token and the median of later tokens,
// over the better of both fixed modes. If different modes are better in the two figures, no mode reaches both. So
// "alone" is the ratio of the better single mode: the worse of its two figures, and the worst of the phases.
func burstSummary(runs []*burstRun) map[string]any {
	metrics := map[string]any{"lost": 0, "requests": 0, "refused": 0}
	worst, first, alone, lost, requests, refused := 0., 0., 0., 0, 0, 0
	for _, r := range runs {
		lost, refused, requests = lost+r.Lost, refused+r.Refused, requests+len(r.results)
	}
	for i, p := range burstPhases() {
		if runs[0].Felt[i].Requests == 0 {
			continue // a quiet phase expects few requests, and had none; this is the same in all runs
		}
		var either [2]float64 // the worse figure of each fixed mode
		for name, of := range map[string]func(felt) float64{"ttft_p99": func(f felt) float64 { return f.TTFT99 }, "tpot": func(f felt) float64 { return f.TPOT50 }} {
			better := min(of(runs[0].Felt[i]), of(runs[1].Felt[i]))
			ratio := of(runs[2].Felt[i]) / better
			for mode := range either {
				either[mode] = max(either[mode], of(runs[mode].Felt[i])/better)
			}
			metrics[name+"_"+p.name] = ratio
			worst = max(worst, ratio)
			if name == "ttft_p99" {
				first = max(first, ratio)
			}
		}
		metrics["alone_"+p.name] = min(either[0], either[1])
		alone = max(alone, min(either[0], either[1]))
	}
	metrics["ttft"], metrics["alone"] = first, alone
	overran := 0.
	for _, r := range runs {
		overran = max(overran, r.Overruns)
	}
	metrics["lost"], metrics["requests"], metrics["refused"], metrics["overruns"], metrics["switches"] = lost, requests, refused, overran, len(runs[2].Switches)
	if g := runs[3].Grown; g != nil {
		metrics["grow_found"], metrics["grow_said"], metrics["grow_error"] = g.Found, g.Said, g.Error
	}
	return map[string]any{"bench": "burst-real", "value": worst, "unit": "worst of the phases: p99 of the time to the first token, or the median per later token, of the world that chooses its mode, over the better of both modes",
		"metrics": metrics, "env": map[string]any{"cpus": runtime.NumCPU()}}
}
