// Package simcli loads the inputs of `tangram simulate` and runs the simulation.
package simcli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/policy"
	"tangram.dev/operator/pkg/simulator"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Options of the command line.
type Options struct {
	Trace, Format, Rates         string
	Prompt, Output               float64
	Times, Concurrency, Rollout  int
	Model, Truth, Prior, Routing string
	Ranks                        int
	RankGB, Noise                float64
	Seed                         uint64
	Width                        Width
	Experts                      Experts
	Hybrids                      []string     // more shapes for policies: g/t, each a number of ranks or all
	Tell                         func(string) // receives warnings; nil: dropped
	Sampled                      bool         // results have samples of the world
	Policies                     []string     // to simulate; `width` gives all worlds the same step tokens per rank
}

// Defaults are those of the command line.
func Defaults() Options {
	return Options{Prompt: 2048, Output: 256, Times: 1, Model: "Qwen3-235B-A22B", Truth: "vllm", Routing: "power_law_1.2", Ranks: 8, RankGB: 141, Noise: .1, Seed: 1,
		Width: Width{Min: 1, Mode: "ExpertParallel", SLO: policy.SLO{Share: .9}, PodSeconds: 60}}
}

// World is a simulated world and its requests.
type World struct {
	Config   simulator.Config
	Requests []simulator.Request
	priors   []*kernels.Step
	o        Options
	refused  error // why both modes cannot be simulated with o.Ranks; only if `width` is among the policies
}

// Load loads requests and tables. It checks the options before it reads a trace.
func Load(o Options, stdin io.Reader) (*World, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	requests, err := o.requests(stdin)
	if err != nil {
		return nil, err
	}
	return o.world(requests)
}

// Make builds a world for the given requests.
func Make(o Options, requests []simulator.Request) (*World, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	return o.world(requests)
}

func (o Options) world(requests []simulator.Request) (*World, error) {
	if len(requests) == 0 {
		return nil, errNoRequests
	}
	v, table, err := Tables(o.Model, o.Ranks)
	if err != nil {
		return nil, err
	}
	kinds, err := o.kinds()
	if err != nil {
		return nil, err
	}
	var shapes []kernels.Shape
	for _, k := range kinds {
		shapes = append(shapes, k.On(o.Ranks))
	}
	w := &World{Requests: simulator.Times(requests, o.Times, o.Seed), o: o}
	if w.Config, err = simulator.Build(v, table, o.Truth, o.Routing, o.hardware(), shapes...); err != nil {
		if o.widthPlayed() {
			w.refused = err
			return w, nil
		}
		return nil, err
	}
	o.common(&w.Config)
	for _, s := range shapes {
		p, err := kernels.At(table, v, o.prior(), o.Routing, s)
		if err != nil {
			return nil, fmt.Errorf("--prior: %w", err)
		}
		w.priors = append(w.priors, p)
	}
	return w, nil
}

// kinds returns the kinds of shapes that policies choose from.
func (o Options) kinds() ([]kernels.Kind, error) {
	out := []kernels.Kind{kernels.Expert(2).Kind(), kernels.Tensor(2).Kind()}
	for _, text := range o.Hybrids {
		k := kernels.Kind{}
		experts, attention, found := strings.Cut(text, "/")
		var err error
		for _, g := range []struct {
			to   *int
			from string
		}{{&k.ExpertGroup, experts}, {&k.AttentionGroup, attention}} {
			if g.from == "all" {
				continue // kernels.AllRanks
			}
			if *g.to, err = strconv.Atoi(g.from); err != nil || *g.to < 1 {
				found = false
			}
		}
		if !found {
			return nil, fmt.Errorf("--hybrids is %q; want EXPERT_GROUP/ATTENTION_GROUP, each a number of ranks or all, e.g. all/1", text)
		}
		out = append(out, k)
	}
	return out, nil
}

// common sets the options that all simulated worlds share.
func (o Options) common(c *simulator.Config) {
	c.Noise, c.Seed, c.Concurrency, c.Sampled = o.Noise, o.Seed, o.Concurrency, o.Sampled
	c.TTFT, c.TPOT, c.Share = o.Width.SLO.TTFT, o.Width.SLO.TPOT, o.Width.SLO.Share
	if o.widthPlayed() {
		c.RankTokens = rankTokens
	}
}

func (o Options) prior() string {
	if o.Prior == "" {
		return Other(o.Truth)
	}
	return o.Prior
}

var errNoRequests = errors.New("found no requests; set a longer --trace or higher --rates")

func (o Options) widthPlayed() bool { return slices.Contains(o.Policies, "width") }

// Overload returns the seconds from the last arrival to the end of the last answer. It returns 0 unless they exceed a
// minute and a tenth of the arrival period, which means that the world cannot serve the arrival rate. It also returns 0
// for a closed loop and for requests that all arrive together.
func (w *World) Overload(makespan float64) float64 {
	first, last := w.Requests[0].At, w.Requests[0].At
	for _, r := range w.Requests {
		first, last = min(first, r.At), max(last, r.At)
	}
	if late := makespan - last; w.o.Concurrency == 0 && last > first && late > max(60, (last-first)/10) {
		return late
	}
	return 0
}

func (o Options) hardware() simulator.Hardware {
	h := simulator.H200()
	h.Memory.RankBytes = uint64(o.RankGB * 1e9)
	return h
}

// Other returns another engine, whose table a policy starts from when this one's table is the truth.
func Other(engine string) string {
	if engine == "sglang" {
		return "trtllm"
	}
	return "sglang"
}

// View returns a public model's geometry, with granules so fine that `ranks` ranks can share an expert. Only bfloat16
// is cut finer, because it has no scale blocks.
func View(model string, ranks int) (*geometry.View, error) {
	all, err := geometry.Public()
	if err != nil {
		return nil, err
	}
	for _, g := range all {
		if !strings.EqualFold(g.Model, model) {
			continue
		}
		for g.Dtype == tangramv1.DType_DTYPE_BF16 && int(g.MoeInner/g.GranuleRows) < ranks && g.GranuleRows%2 == 0 {
			g.GranuleRows /= 2
			g.GranuleBytes /= 2
		}
		return geometry.New(g)
	}
	return nil, fmt.Errorf("no public geometry is named %q", model)
}

func (o Options) requests(stdin io.Reader) ([]simulator.Request, error) {
	said := 0
	for _, is := range []bool{o.Trace != "", o.Rates != "", o.Rollout != 0} {
		if is {
			said++
		}
	}
	if said != 1 {
		return nil, fmt.Errorf("found %d of --trace, --rates and --rollout; set exactly one of them", said)
	}
	if o.Rollout != 0 {
		if o.Rollout < 1 || o.Rollout > 1e6 {
			return nil, fmt.Errorf("--rollout is %d; want 1 to 1,000,000 requests", o.Rollout)
		}
		return simulator.Rollout(o.Rollout, simulator.Tail(), o.Seed), nil
	}
	if o.Rates != "" {
		rates, err := parseRates(o.Rates)
		if err != nil {
			return nil, fmt.Errorf("--rates: %w", err)
		}
		if !(o.Prompt >= 1 && o.Prompt < 1e6 && o.Output >= 1 && o.Output < 1e6) {
			return nil, fmt.Errorf("--prompt is %v and --answer is %v; want at least 1 and less than 1e6 tokens each", o.Prompt, o.Output)
		}
		return simulator.Generate(rates, o.Prompt, o.Output, o.Seed), nil
	}
	switch o.Trace {
	case "conversation":
		trace, err := simulator.Conversation()
		return trace.Requests, err
	case "code":
		trace, err := simulator.Code()
		return trace.Requests, err
	}
	in := stdin
	if o.Trace != "-" {
		f, err := os.Open(o.Trace)
		if err != nil {
			return nil, fmt.Errorf("--trace: %w; want a file, conversation or code", err)
		}
		defer func() { _ = f.Close() }() // only read
		in = f
	}
	trace, err := simulator.Read(in, o.Format)
	if err != nil {
		return nil, fmt.Errorf("--trace %s: %w", o.Trace, err)
	}
	if trace.Empty > 0 && o.Tell != nil {
		o.Tell(fmt.Sprintf("--trace %s: %d lines skipped, because they have no prompt tokens or no output tokens", o.Trace, trace.Empty))
	}
	return trace.Requests, nil
}

func parseRates(text string) ([]simulator.Rate, error) {
	var out []simulator.Rate
	for part := range strings.SplitSeq(text, ",") {
		seconds, rate, found := strings.Cut(part, "x")
		s, e1 := strconv.ParseFloat(seconds, 64)
		r, e2 := strconv.ParseFloat(rate, 64)
		if !found || e1 != nil || e2 != nil || !(s > 0 && s <= 1e6 && r > 0 && r*s <= 1e7) {
			return nil, fmt.Errorf("found %q; want SECONDSxREQUESTS_PER_SECOND, e.g. 300x2, with at most 10 million requests", part)
		}
		out = append(out, simulator.Rate{Seconds: s, PerSecond: r})
	}
	return out, nil
}

// Play simulates one policy from the start.
func (w *World) Play(name string, progress func(at float64, left int)) (simulator.Result, error) {
	if w.refused != nil {
		return simulator.Result{}, w.refused
	}
	c := w.Config
	var p policy.Policy = policy.Static{}
	switch name {
	case "threshold":
		p = policy.NewThreshold(policy.Published())
	case "rollout":
		p = policy.NewThreshold(policy.Rollout())
	case "calibrated":
		p = policy.NewCalibrated(policy.Defaults(), costmodel.New(costmodel.Options{}, w.priors...))
		simulator.Calibrate(c, p)
	case "hindsight":
		return simulator.Hindsight(c, w.Requests, simulator.Beam{}, progress)
	default: // a mode or a hybrid
		start := slices.IndexFunc(c.Modes, func(m simulator.Mode) bool { return strings.HasPrefix(m.Truth.Shape().String(), name+"/") })
		if start < 0 {
			return simulator.Result{}, fmt.Errorf("unknown policy or mode")
		}
		c.Start = start
	}
	return simulator.Run(c, w.Requests, p, progress)
}
