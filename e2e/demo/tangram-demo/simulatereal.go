package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/policy"
	"tangram.dev/operator/pkg/simulator"
)

const (
	realRanks     = 2
	realDilation  = 12
	realRows      = 24 // rows of a rank's step, as in the harness
	realStallGap  = 400 * time.Millisecond
	realMostTries = 4 // for runs in which this process was stopped
)

// realLoad is the load of one run. Rates are in real seconds.
type realLoad struct {
	Name           string
	Mode           string
	Rates          []simulator.Rate
	Prompt, Output float64
}

// realLoads returns the loads; the simulator is calibrated on the first one only.
func realLoads() []realLoad {
	at := func(seconds, perSecond float64) []simulator.Rate {
		return []simulator.Rate{{Seconds: seconds, PerSecond: perSecond}}
	}
	return []realLoad{
		{"calibration", "ExpertParallel", at(20, 2.5), 12, 24},
		{"few, long answers", "ExpertParallel", at(20, 1), 20, 50},
		{"more than it can serve", "ExpertParallel", at(8, 25), 8, 16},
		{"other mode", "TensorParallel", at(20, 2.5), 12, 24},
		{"other mode, long prompts", "TensorParallel", at(20, 1.5), 40, 20},
		{"a burst", "ExpertParallel", []simulator.Rate{{Seconds: 6, PerSecond: 1}, {Seconds: 4, PerSecond: 8}, {Seconds: 8, PerSecond: 1}}, 12, 24},
	}
}

// requests returns a load's requests, within the model's limits.
func (l realLoad) requests(seed uint64) []simulator.Request {
	out := simulator.Generate(l.Rates, l.Prompt, l.Output, seed)
	for i := range out {
		out[i].Prompt, out[i].Output = min(out[i].Prompt, 200), min(max(out[i].Output, 2), 200)
	}
	return out
}

// realFigures are the results of a real or simulated run: seconds, and tokens per second. Transition is the duration of
// a mode switch after it.
type realFigures struct {
	TTFT, TPOT, TokensPerSecond, Transition float64
}

func (f realFigures) all() map[string]float64 {
	return map[string]float64{"ttft": f.TTFT, "tpot": f.TPOT, "tokens_per_second": f.TokensPerSecond, "transition": f.Transition}
}

// simulateReal bench: the simulator, calibrated on one load, predicts real paced processes under five others.
func simulateReal(ctx context.Context, o options) error {
	seed := uint64(1)
	w, compiled, err := pacedWorld(ctx, o)
	if err != nil {
		return err
	}
	defer w.Stop()
	lines := json.NewEncoder(os.Stdout)
	var errs, between []float64
	by := map[string][]float64{}
	var c calibration
	discarded := 0
	loads := realLoads()
	if os.Getenv("QUICK") != "" { // one load without calibration, in a third of the time
		loads = loads[:2]
		for i := range loads {
			loads[i].Rates[0].Seconds /= 3
		}
	}
	for i, l := range loads {
		requests := l.requests(seed + uint64(i))
		var runs [2]realFigures
		var records [2]*harness.Record
		for j := range runs {
			var again int
			if runs[j], records[j], again, err = playReal(ctx, w, l, requests); err != nil {
				return fmt.Errorf("%s: %w", l.Name, err)
			}
			discarded += again
		}
		said, err := playSimulated(ctx, w, compiled, l, requests)
		if err != nil {
			return err
		}
		if i == 0 {
			c = calibrate(runs, said, records)
			say("calibrated: first tokens %.3f s later, steps %.3f times as long, %.3g bytes/s, %.3f s of a flip", c.first, c.step, c.rate, c.flip)
		}
		said = c.correct(said)
		line := map[string]any{"load": l.Name, "requests": len(requests), "mode": l.Mode}
		for name, v := range said.all() {
			a, b := runs[0].all()[name], runs[1].all()[name]
			mean := (a + b) / 2
			wrong, apart := math.Abs(v-mean)/mean, math.Abs(a-b)/mean
			line[name] = []float64{a, b, v}
			if i > 0 {
				errs, between = append(errs, wrong), append(between, apart)
				by[name] = append(by[name], wrong)
			}
		}
		say("%s: real TTFT %.3f %.3f s, said %.3f; TPOT %.4f %.4f, said %.4f; tokens/s %.1f %.1f, said %.1f; change of mode %.2f %.2f s, said %.2f", l.Name, runs[0].TTFT, runs[1].TTFT, said.TTFT,
			runs[0].TPOT, runs[1].TPOT, said.TPOT, runs[0].TokensPerSecond, runs[1].TokensPerSecond, said.TokensPerSecond, runs[0].Transition, runs[1].Transition, said.Transition)
		if err := lines.Encode(line); err != nil {
			return err
		}
	}
	allowed := max(.15, 1.5*medianOf(between))
	found := map[string]any{"median_error": medianOf(errs), "worst_error": slices.Max(errs), "between_two_runs": medianOf(between), "allowed": allowed, "discarded_runs": discarded, "loads": len(loads) - 1}
	for name, v := range by {
		found[name+"_error"] = medianOf(v)
	}
	return lines.Encode(map[string]any{"bench": "simulate-real", "value": medianOf(errs) / allowed,
		"unit": "median error of the simulator over what is allowed: the larger of 15 % and 1.5 times that between two real runs", "metrics": found, "env": map[string]any{"cpus": runtime.NumCPU()}})
}

func medianOf(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	if len(sorted) == 0 {
		return math.NaN()
	}
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// pacedWorld starts a world of the tiny model with the step durations of a table.
func pacedWorld(ctx context.Context, o options) (*harness.World, *kernels.Compiled, error) {
	checkpoint, err := harness.Checkpoint(ctx, o.root, "tiny")
	if err != nil {
		return nil, nil, err
	}
	path, compiled, err := paceFile(o, "vllm", "balanced", realRanks)
	if err != nil {
		return nil, nil, err
	}
	w, err := harness.Start(ctx, harness.Options{Root: o.root, Dir: filepath.Join(o.out, "world"), Checkpoint: checkpoint, Pods: []int{1, 1}, Granule: 8, KV: 8 << 20, Memory: 64 << 20,
		Patience: time.Minute, EngineFlags: []string{"--pace", path, "--dilation", fmt.Sprint(realDilation)}})
	return w, compiled, err
}

func otherMode(mode string) string {
	if mode == "ExpertParallel" {
		return "TensorParallel"
	}
	return "ExpertParallel"
}

// playReal runs a load, measured by its clients' clocks, and then a mode switch of the idle world. A run in which the
// machine stopped this process is repeated.
func playReal(ctx context.Context, w *harness.World, l realLoad, requests []simulator.Request) (realFigures, *harness.Record, int, error) {
	for again := range realMostTries {
		if _, err := w.Apply(ctx, realRanks, l.Mode, nil, nil); err != nil {
			return realFigures{}, nil, 0, fmt.Errorf("%w: %s", err, w.Died())
		}
		still, watched := watchStills(ctx)
		results := make([]*load.Result, len(requests))
		var wait sync.WaitGroup
		start := time.Now().Add(500 * time.Millisecond)
		for i, q := range requests {
			wait.Go(func() {
				time.Sleep(time.Until(start.Add(time.Duration(q.At * float64(time.Second)))))
				prompt := make([]uint32, q.Prompt) // unique prompts, so that no prefix is reused
				for j := range prompt {
					prompt[j] = uint32(1 + (i*37+j*11+i*i)%250)
				}
				results[i] = client(w).Do(ctx, load.Request{Index: i, Prompt: prompt, MaxTokens: q.Output, TopP: 1})
			})
		}
		wait.Wait()
		f, err := figuresOf(results)
		if err != nil {
			return realFigures{}, nil, 0, err
		}
		record, err := w.Apply(ctx, realRanks, otherMode(l.Mode), nil, nil)
		if err != nil {
			return realFigures{}, nil, 0, fmt.Errorf("%w: %s", err, w.Died())
		}
		still()
		longest := <-watched
		if longest < realStallGap {
			f.Transition = record.Seconds.Stage + record.Seconds.Flip
			return f, record, again, nil
		}
		say("%s: the machine stood still for %.1f s: discarded", l.Name, longest.Seconds())
	}
	return realFigures{}, nil, 0, fmt.Errorf("the machine stood still in each of %d runs: others use it", realMostTries)
}

// watchStills returns, after stop, the longest time for which this process did not run.
func watchStills(ctx context.Context) (stop func(), longest <-chan time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	out := make(chan time.Duration, 1)
	go func() {
		var most time.Duration
		for last := time.Now(); ctx.Err() == nil; {
			time.Sleep(20 * time.Millisecond)
			now := time.Now()
			most, last = max(most, now.Sub(last)), now
		}
		out <- most
	}()
	return cancel, out
}

func figuresOf(results []*load.Result) (realFigures, error) {
	var ttft, tpot []float64
	tokens, first, last := 0, time.Time{}, time.Time{}
	for _, r := range results {
		if r.Err != nil {
			return realFigures{}, fmt.Errorf("request %d: %w", r.Request.Index, r.Err)
		}
		n := len(r.Tokens)
		tokens += n
		if first.IsZero() || r.Sent.Before(first) {
			first = r.Sent
		}
		if end := r.Tokens[n-1].At; end.After(last) {
			last = end
		}
		ttft = append(ttft, r.Tokens[0].At.Sub(r.Sent).Seconds())
		if n > 1 {
			tpot = append(tpot, r.Tokens[n-1].At.Sub(r.Tokens[0].At).Seconds()/float64(n-1))
		}
	}
	return realFigures{TTFT: medianOf(ttft), TPOT: medianOf(tpot), TokensPerSecond: float64(tokens) / last.Sub(first).Seconds()}, nil
}

// foretold is the simulator's prediction in real seconds, before correction.
type foretold struct {
	realFigures
	bytes float64 // of the busiest rank in the mode switch
	flips float64
}

func playSimulated(ctx context.Context, w *harness.World, compiled *kernels.Compiled, l realLoad, requests []simulator.Request) (foretold, error) {
	shapes := map[string]kernels.Shape{"ExpertParallel": kernels.Expert(realRanks), "TensorParallel": kernels.Tensor(realRanks)}
	step, err := compiled.Step(shapes[l.Mode])
	if err != nil {
		return foretold{}, err
	}
	c := simulator.Config{Modes: []simulator.Mode{{Truth: step, GroupTokens: 1 << 20}}, Switches: [][]costmodel.Transition{{{}}}, Rates: costmodel.Rates{BytesPerSecond: 1}, ChunkTokens: realRows * shapes[l.Mode].Groups()}
	short := slices.Clone(requests)
	for i := range short {
		short[i].At /= realDilation
	}
	r, err := simulator.Run(c, short, policy.Static{}, nil)
	if err != nil {
		return foretold{}, err
	}
	var ttft, tpot []float64
	first, last := math.Inf(1), 0.
	for _, a := range r.Answers {
		ttft = append(ttft, a.First*realDilation)
		if a.Output > 1 {
			tpot = append(tpot, a.Rest*realDilation/float64(a.Output-1))
		}
		first, last = min(first, a.Arrival*realDilation), max(last, (a.Arrival+a.First+a.Rest)*realDilation)
	}
	status, err := w.Status(ctx)
	if err != nil {
		return foretold{}, err
	}
	v, err := geometry.New(status[0].Geometry)
	if err != nil {
		return foretold{}, err
	}
	price, err := simulator.Price(v, shapes[l.Mode], shapes[otherMode(l.Mode)], costmodel.Memory{RankBytes: 64 << 20, SpareBanks: 3, NoRepairHeadroom: true})
	if err != nil {
		return foretold{}, err
	}
	return foretold{realFigures{TTFT: medianOf(ttft), TPOT: medianOf(tpot), TokensPerSecond: float64(r.OutputTokens) / (last - first)}, float64(price.BusiestBytes), float64(price.Flips)}, nil
}

// calibration has the parameters of this machine and our processes that the simulator cannot know, from the first load
// alone.
type calibration struct {
	first float64 // additional seconds to a first token: gateway, admission, the running step
	step  float64 // stretch of a step
	rate  float64 // bytes/s of a rank
	flip  float64 // seconds of a flip
}

func calibrate(runs [2]realFigures, said foretold, records [2]*harness.Record) calibration {
	c := calibration{step: (runs[0].TPOT + runs[1].TPOT) / 2 / said.TPOT}
	c.first = (runs[0].TTFT+runs[1].TTFT)/2 - said.TTFT*c.step
	for _, r := range records {
		c.rate += said.bytes / max(r.Seconds.Stage, 1e-3) / 2
		c.flip += r.Seconds.Flip / said.flips / 2
	}
	return c
}

// correct corrects a prediction. Tokens per second are left unchanged: without long queues they follow the arrivals.
func (c calibration) correct(s foretold) foretold {
	s.TTFT = s.TTFT*c.step + c.first
	s.TPOT *= c.step
	s.Transition = s.bytes/c.rate + s.flips*c.flip
	return s
}
