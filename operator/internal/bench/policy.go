package bench

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"tangram.dev/operator/internal/simcli"
	"tangram.dev/operator/pkg/simulator"
)

// policyTrace is a load and a model that can serve it on 8 ranks.
type policyTrace struct {
	name     string
	options  simcli.Options
	requests []simulator.Request // nil: by options
}

func policyTraces() []policyTrace {
	o := simcli.Defaults()
	small := o
	small.Model = "Qwen3-30B-A3B"
	conversation, code, bursts, day := small, small, o, small
	conversation.Trace = "conversation"
	code.Trace, code.Times = "code", 20
	// Low load with two bursts of a minute, and a day's shape in twelve minutes.
	bursts.Rates, bursts.Prompt, bursts.Output = "300x2,60x12,300x2,60x12,300x2", 1024, 512
	day.Rates, day.Prompt, day.Output = "200x5,100x60,200x20,30x150,200x5", 1024, 512
	return []policyTrace{{"conversation", conversation, nil}, {"code x 20", code, nil}, {"bursts", bursts, nil}, {"day", day, nil}}
}

// switchingTraces are loads for which neither mode alone is best. One is a burst after a long time with few requests.
// One is chat with long answers (TensorParallel is faster) with bursts of long documents with short answers
// (ExpertParallel is faster). One is batches that consist of their tails for most of the time. The bench checks whether
// a case is of this kind.
func switchingTraces() []policyTrace {
	chat, tails := simcli.Defaults(), simcli.Defaults()
	documents := func(chatted float64, bursts ...simulator.Rate) []simulator.Request {
		const seconds = 1500
		out := simulator.Generate([]simulator.Rate{{Seconds: seconds, PerSecond: chatted}}, 256, 1024, chat.Seed)
		for i, b := range bursts {
			for _, q := range simulator.Generate([]simulator.Rate{b}, 8192, 32, chat.Seed+1+uint64(i)) {
				q.At += seconds / float64(len(bursts)) * (float64(i) + .5)
				out = append(out, q)
			}
		}
		slices.SortStableFunc(out, func(a, b simulator.Request) int { return cmp.Compare(a.At, b.At) })
		return out
	}
	batches := func(n int) []simulator.Request {
		var out []simulator.Request
		for i := range 3 {
			for _, q := range simulator.Rollout(n, simulator.LongTail{Median: 500, Sigma: 1.5, Most: 16384}, uint64(i)) {
				q.At = 300 * float64(i)
				out = append(out, q)
			}
		}
		return out
	}
	rare, longer := simcli.Defaults(), simcli.Defaults()
	rare.Rates, rare.Prompt, rare.Output = "2000x1,30x30,2000x1", 1024, 512
	longer.Rates, longer.Prompt, longer.Output = "1500x1,40x35,1500x1", 1024, 512
	return []policyTrace{
		{"a rare burst", rare, nil}, {"a longer burst", longer, nil},
		{"chat and documents", chat, documents(2, simulator.Rate{Seconds: 20, PerSecond: 25}, simulator.Rate{Seconds: 20, PerSecond: 25})},
		{"tails of 384", tails, batches(384)},
	}
}

var engines = []string{"vllm", "trtllm", "sglang"}

// played has the results of one load on one engine's kernels under each policy: mean latency of a request, in seconds.
type played struct {
	latency  map[string]float64
	switches map[string]int
}

func (p played) static() float64 {
	return min(p.latency["ExpertParallel"], p.latency["TensorParallel"])
}

// over returns the latency over the best known schedule: the hindsight search is no bound, so a static mode may be
// better. The ratio to the search alone, which may then be below 1, is printed too.
func (p played) over(name string) float64 {
	return p.latency[name] / min(p.latency["hindsight"], p.static())
}

func play(o simcli.Options, requests []simulator.Request) (played, error) {
	out := played{map[string]float64{}, map[string]int{}}
	var w *simcli.World
	var err error
	if requests == nil {
		w, err = simcli.Load(o, nil)
	} else {
		w, err = simcli.Make(o, requests)
	}
	if err != nil {
		return played{}, err
	}
	for _, name := range []string{"ExpertParallel", "TensorParallel", "threshold", "calibrated", "hindsight"} {
		r, err := w.Play(name, nil)
		if err != nil {
			return played{}, fmt.Errorf("%s: %w", name, err)
		}
		out.latency[name] = r.LatencySum / float64(r.Requests)
		out.switches[name] = len(r.Switches)
	}
	return out, nil
}

func (p played) line(bench, trace, engine string) map[string]any {
	return map[string]any{"bench": bench, "trace": trace, "truth": engine, "prior": simcli.Other(engine), "mean_latency_s": p.latency, "switches": p.switches,
		"calibrated_over_hindsight": p.over("calibrated"), "calibrated_over_search": p.latency["calibrated"] / p.latency["hindsight"],
		"static_over_hindsight": p.over("ExpertParallel") * p.static() / p.latency["ExpertParallel"], "threshold_over_hindsight": p.over("threshold"),
		"calibrated_over_static": p.latency["calibrated"] / p.static()}
}

// Policy simulates four traces on three engines' kernels under the calibrated policy, with another engine's prior and
// 10 % noise on steps. It compares the sum of latencies with the best known schedule.
func Policy(out, progress io.Writer, quick bool) error {
	traces, on := policyTraces(), engines
	if quick {
		traces, on = traces[2:], []string{"trtllm", "sglang"}
	}
	judged := len(traces) // in median and worst; the others are for loads where neither mode alone is best
	traces = append(traces, switchingTraces()...)
	var over []float64
	worstStatic, worstWhereSwitching, thresholds, switching := 0.0, 1.0, 0.0, 0
	begin := time.Now()
	for i, t := range traces {
		for _, engine := range on {
			t.options.Truth = engine
			p, err := play(t.options, t.requests)
			if err != nil {
				return fmt.Errorf("policy: %s, %s: %w", t.name, engine, err)
			}
			if err := printLine(out, p.line("policy", t.name, engine)); err != nil {
				return err
			}
			ratio := p.over("calibrated")
			if i < judged {
				over = append(over, ratio)
				worstStatic = max(worstStatic, p.latency["calibrated"]/p.static())
			}
			thresholds = max(thresholds, p.over("threshold"))
			if p.static() >= 1.10*p.latency["hindsight"] {
				switching++
				worstWhereSwitching = max(worstWhereSwitching, ratio)
			}
			if _, err := fmt.Fprintf(progress, "policy: %s on %s: over hindsight calibrated %.3f, threshold %.3f, ExpertParallel %.3f, TensorParallel %.3f; %.0f s\n", t.name, engine,
				ratio, p.over("threshold"), p.over("ExpertParallel"), p.over("TensorParallel"), time.Since(begin).Seconds()); err != nil {
				return err
			}
		}
	}
	metrics := map[string]any{"worst": slices.Max(over), "worst_over_static": worstStatic, "cases_where_static_is_bad": switching,
		"threshold_worst": thresholds, "cases": len(over), "seconds": time.Since(begin).Seconds()}
	if switching > 0 { // otherwise no such case was found, and its gate fails
		metrics["worst_where_static_is_bad"] = worstWhereSwitching
	}
	return printLine(out, Summary{Bench: "policy", Value: middle(over), Unit: "sum of latencies over hindsight's, median", Ceiling: 1, Ratio: middle(over), Env: environment(quick),
		Metrics: metrics})
}

// PolicyUnseen simulates traces drawn by the seed of a date: parts of random rates and lengths, with clumps or without,
// on random kernels.
func PolicyUnseen(out, progress io.Writer, date string, quick bool) error {
	if date == "" {
		date = time.Now().UTC().Format(time.DateOnly)
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(date)) // a hash write never fails
	random := rand.New(rand.NewPCG(hash.Sum64(), 5))
	cases := 50
	if quick {
		cases = 6
	}
	var over, thresholds, bests []float64
	worstStatic := 0.0
	drawnTraces := make([]policyTrace, cases)
	for i := range cases {
		o, requests := drawn(random)
		drawnTraces[i] = policyTrace{fmt.Sprintf("%s/%d", date, i), o, requests}
		p, err := play(o, requests)
		if err != nil {
			return fmt.Errorf("policy-unseen: %s, case %d: %w", date, i, err)
		}
		l := p.line("policy-unseen", fmt.Sprintf("%s/%d: %s, prompts %.0f, answers %.0f, %s", date, i, o.Rates, o.Prompt, o.Output, o.Routing), o.Truth)
		l["model"], l["prior"] = o.Model, o.Prior
		if err := printLine(out, l); err != nil {
			return err
		}
		over, thresholds, bests = append(over, p.over("calibrated")), append(thresholds, p.over("threshold")), append(bests, min(p.latency["hindsight"], p.static()))
		worstStatic = max(worstStatic, p.latency["calibrated"]/p.static())
		if _, err := fmt.Fprintf(progress, "policy-unseen: %d: over hindsight calibrated %.3f, threshold %.3f, ExpertParallel %.3f, TensorParallel %.3f\n", i, p.over("calibrated"), p.over("threshold"),
			p.over("ExpertParallel"), p.over("TensorParallel")); err != nil {
			return err
		}
	}
	// For the worst cases, print what remains when the kernels are known from the start, and also without noise.
	order := make([]int, cases)
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(over[b], over[a]) })
	knowing := 0.0
	for _, i := range order[:3] {
		p, err := knowingKernels(drawnTraces[i], over[i], bests[i])
		if err != nil {
			return fmt.Errorf("policy-unseen: %s: %w", drawnTraces[i].name, err)
		}
		knowing = max(knowing, p["knowing_kernels"].(float64))
		if err := printLine(out, p); err != nil {
			return err
		}
	}
	return printLine(out, Summary{Bench: "policy-unseen", Value: middle(over), Unit: "sum of latencies over hindsight's, median", Ceiling: 1, Ratio: middle(over), Env: environment(quick),
		Metrics: map[string]any{"worst": slices.Max(over), "worst_over_static": worstStatic, "threshold_median": middle(thresholds), "threshold_worst": slices.Max(thresholds),
			"worst_three_knowing_kernels": knowing, "cases": cases, "date": date}})
}

// knowingKernels simulates a trace again under the calibrated policy with the true table as prior, with the same noise
// and without any. What then remains over hindsight is not the model's error. `best` is hindsight's mean latency.
func knowingKernels(t policyTrace, over, best float64) (map[string]any, error) {
	line := map[string]any{"bench": "policy-unseen", "trace": t.name, "calibrated_over_hindsight": over}
	o := t.options
	o.Prior = o.Truth
	for name, noise := range map[string]float64{"knowing_kernels": o.Noise, "knowing_kernels_without_noise": 0} {
		o.Noise = noise
		w, err := simcli.Make(o, t.requests)
		if err != nil {
			return nil, err
		}
		r, err := w.Play("calibrated", nil)
		if err != nil {
			return nil, err
		}
		line[name] = r.LatencySum / float64(r.Requests) / best
	}
	return line, nil
}

func drawn(random *rand.Rand) (simcli.Options, []simulator.Request) {
	o := simcli.Defaults()
	between := func(low, high float64) float64 { return low + random.Float64()*(high-low) }
	o.Truth = engines[random.IntN(3)]
	for o.Prior = o.Truth; o.Prior == o.Truth; {
		o.Prior = engines[random.IntN(3)]
	}
	o.Routing = []string{"balanced", "power_law_1.01", "power_law_1.2"}[random.IntN(3)]
	most := 14.0 // sustainable requests per second on 8 ranks, with a thousand prompt tokens each
	if random.IntN(2) == 0 {
		o.Model, most = "Qwen3-30B-A3B", 70
	}
	o.Prompt, o.Output = between(256, 4096), between(32, 1024)
	most *= 1000 / (o.Prompt + 2*o.Output)
	var rates []simulator.Rate
	for range 3 + random.IntN(8) {
		r := simulator.Rate{Seconds: between(20, 200), PerSecond: most * between(.02, .8)}
		if random.IntN(4) == 0 { // a burst: short and above capacity
			r.Seconds, r.PerSecond = between(5, 30), most*between(1, 3)
		}
		o.Rates += fmt.Sprintf("%s%.0fx%.1f", map[bool]string{true: ","}[o.Rates != ""], r.Seconds, r.PerSecond)
		rates = append(rates, r)
	}
	o.Seed = random.Uint64()
	requests := simulator.Generate(rates, o.Prompt, o.Output, o.Seed)
	if clump := random.IntN(3); clump > 0 { // as in traces with coarse timestamps
		for i := range requests {
			unit := float64(clump)
			requests[i].At = float64(int(requests[i].At/unit)) * unit
		}
	}
	return o, requests
}
