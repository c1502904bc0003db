package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
)

// transition is a transition of the demo, as in the report; README.md explains the fields.
type transition struct {
	Name       string          `json:"name"`
	Resize     bool            `json:"resize"`
	Streams    int             `json:"streams"` // running at its start
	Record     *harness.Record `json:"record"`
	LongestGap float64         `json:"longest_gap_seconds"`
	Silent     float64         `json:"silent_seconds"`
	Copy       float64         `json:"copy_seconds"`
	Ratio      float64         `json:"ratio"`
	// Silences are the gaps that Silent sums: seconds after the start of the transition, and length.
	Silences [][2]float64 `json:"silences"`
	Seen     seen         `json:"seen"`
	// Placement is the placement after it, for local worlds.
	Placement *placement `json:"placement,omitempty"`
}

type report struct {
	Seed       uint64  `json:"seed"`
	Ranks      int     `json:"ranks"`
	Requests   int     `json:"requests"`
	Tokens     int     `json:"tokens"`
	Lost       int     `json:"lost"`
	Different  int     `json:"different"`
	Compared   bool    `json:"compared"`
	LongestGap float64 `json:"longest_gap_seconds"`
	Step       float64 `json:"step_seconds"`
	FirstToken float64 `json:"first_token_seconds"` // median
	// FirstToken99 is the 99th percentile of the time to the first token.
	FirstToken99 float64  `json:"p99_first_token_seconds"`
	WorstFirst   float64  `json:"worst_first_token_seconds"`
	Refusals     refusals `json:"refusals"`
	// GatewayBefore has the gateway's counts after the last transition, before the first kill; Gateway those at the
	// end.
	GatewayBefore load.GatewayCounts `json:"gateway_before_deaths"`
	Gateway       load.GatewayCounts `json:"gateway"`
	Ordinary      float64            `json:"ordinary_gap_seconds"`
	Transitions   []*transition      `json:"transitions"`
	Heat          *heat              `json:"heat,omitempty"`
	Acts          []*act             `json:"acts"`
	Bursts        *bursts            `json:"bursts,omitempty"`
	Oracle        *oracleReport      `json:"oracle,omitempty"`
	Broken        []string           `json:"promises_broken"`
	// FirstPlacement of the experts and the long Stream are for the picture of a local run.
	FirstPlacement *placement `json:"first_placement,omitempty"`
	Stream         *stream    `json:"stream,omitempty"`

	local        bool
	around       time.Duration // the pause between acts
	leastStreams int           // at each event
}

func (r *report) judge(results, reference []*load.Result, compare bool) error {
	r.Requests, r.Compared, r.Broken = len(results), compare, []string{}
	var times []time.Time
	for i, result := range results {
		r.Tokens += len(result.Tokens)
		r.LongestGap = max(r.LongestGap, result.LongestGap().Seconds())
		for _, t := range result.Tokens {
			times = append(times, t.At)
		}
		if result.Err != nil {
			r.Lost++
			say("lost: request %d: %v", i, result.Err)
			continue
		}
		if !compare {
			continue
		}
		if reference[i].Err != nil {
			return fmt.Errorf("request %d failed on one rank, where nothing moves: %w", i, reference[i].Err)
		}
		if where := result.Differs(reference[i]); where != "" {
			r.Different++
			say("different: %s", where)
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	r.Step = r.medianStep(results)
	r.Ordinary = max(2*r.Step, r.ordinaryGap(results, times))
	r.FirstToken, r.FirstToken99, r.WorstFirst = firstTokens(results)
	for _, a := range r.Acts {
		a.measure(results)
		r.judgeStreams(a.Name, a.Requests)
		a.Seen.measure(results, times, a.at, a.whole, r.Step, r.around)
	}
	for _, t := range r.Transitions {
		t.measure(results, times, r.Step, r.Ordinary)
		t.Seen.measure(results, times, t.Record.Started, t.Record.Ended, r.Step, r.around)
		t.Streams = len(streamsAt(results, t.Record.Started))
		r.judgeStreams(t.Name, t.Streams)
		r.judgeBytes(t)
	}
	if r.Heat != nil {
		r.Heat.Seen.measure(results, times, r.Heat.from, r.Heat.to, r.Step, r.around)
	}
	r.countRefusals(results)
	r.judgeGateway()
	if r.Heat != nil && r.Heat.Measured <= r.Heat.Without {
		r.Broken = append(r.Broken, fmt.Sprintf("%s: balancedness is %.3f, and would be %.3f with no rebalance", heatName, r.Heat.Measured, r.Heat.Without))
	}
	if r.Requests == 0 || r.Tokens == 0 {
		r.Broken = append(r.Broken, "no request ran")
	}
	if r.Lost > 0 {
		r.Broken = append(r.Broken, fmt.Sprintf("%d requests lost", r.Lost))
	}
	if r.Oracle != nil {
		r.Broken = append(r.Broken, r.Oracle.broken()...)
	}
	if r.Different > 0 {
		r.Broken = append(r.Broken, fmt.Sprintf("%d requests different", r.Different))
	}
	if r.Bursts != nil {
		r.Broken = append(r.Broken, r.Bursts.Broken...)
	}
	return nil
}

// judgeStreams rejects an event without load, which proves nothing.
func (r *report) judgeStreams(event string, streams int) {
	if streams < r.leastStreams {
		r.Broken = append(r.Broken, fmt.Sprintf("%s: %d streams ran when it began, and at least %d are promised", event, streams, r.leastStreams))
	}
}

func (r *report) inTransition(at time.Time) bool {
	return slices.ContainsFunc(r.Transitions, func(t *transition) bool {
		return at.After(t.Record.Started) && at.Before(t.Record.Ended)
	}) || r.Heat != nil && at.After(r.Heat.from) && at.Before(r.Heat.to) || slices.ContainsFunc(r.Acts, func(a *act) bool { return at.After(a.at) && at.Before(a.whole) })
}

// medianStep is the median time between tokens of one request, outside transitions.
func (r *report) medianStep(results []*load.Result) float64 {
	var gaps []float64
	for _, result := range results {
		for i := 1; i < len(result.Tokens); i++ {
			a, b := result.Tokens[i-1].At, result.Tokens[i].At
			if !r.inTransition(a) && !r.inTransition(b) {
				gaps = append(gaps, b.Sub(a).Seconds())
			}
		}
	}
	if len(gaps) == 0 {
		return 0
	}
	slices.Sort(gaps)
	return gaps[len(gaps)/2]
}

// ordinaryGap is the 99th percentile of gaps between consecutive tokens of the whole world while a request waits and no
// transition runs. Steps with prefill take longer than decode-only steps, also without transitions.
func (r *report) ordinaryGap(results []*load.Result, times []time.Time) float64 {
	var gaps []float64
	for i := 1; i < len(times); i++ {
		from, to := times[i-1], times[i]
		// Tokens of one step arrive together; only gaps between steps count.
		if gap := to.Sub(from).Seconds(); gap > r.Step/4 && !r.inTransition(from) && !r.inTransition(to) && someoneWaits(results, from, to) {
			gaps = append(gaps, gap)
		}
	}
	if len(gaps) == 0 {
		return 0
	}
	slices.Sort(gaps)
	return gaps[len(gaps)*99/100]
}

func (t *transition) measure(results []*load.Result, times []time.Time, step, ordinary float64) {
	overlaps := func(a, b time.Time) bool { return b.After(t.Record.Started) && a.Before(t.Record.Ended) }
	for _, result := range results {
		for i := 1; i < len(result.Tokens); i++ {
			if a, b := result.Tokens[i-1].At, result.Tokens[i].At; overlaps(a, b) {
				t.LongestGap = max(t.LongestGap, b.Sub(a).Seconds())
			}
		}
	}
	for i := 1; i < len(times); i++ {
		from, to := times[i-1], times[i]
		if gap := to.Sub(from).Seconds(); overlaps(from, to) && gap > ordinary && someoneWaits(results, from, to) {
			t.Silent += gap - step
			t.Silences = append(t.Silences, [2]float64{from.Sub(t.Record.Started).Seconds(), gap})
		}
	}
	b := t.Record.Bytes
	t.Copy = copySeconds(b.Local + b.Shared + b.TCP + b.Checkpoint + b.KV)
	t.Ratio = t.Silent / (t.Copy + 2*step)
}

// someoneWaits reports whether a request had its first token by `from` and its last not before `to`: a gap without such
// a request is an idle world, not a stall.
func someoneWaits(results []*load.Result, from, to time.Time) bool {
	return slices.ContainsFunc(results, func(r *load.Result) bool {
		n := len(r.Tokens)
		return n > 0 && !r.Tokens[0].At.After(from) && !r.Tokens[n-1].At.Before(to)
	})
}

// copySeconds is the time of a plain copy of this many bytes between two resident buffers: the median of five.
func copySeconds(bytes uint64) float64 {
	if bytes == 0 {
		return 0
	}
	from, to := make([]byte, bytes), make([]byte, bytes)
	for i := 0; i < len(from); i += 4096 {
		from[i], to[i] = 1, 2
	}
	var took []float64
	for range 5 {
		began := time.Now()
		copy(to, from)
		took = append(took, time.Since(began).Seconds())
	}
	runtime.KeepAlive(to)
	slices.Sort(took)
	return took[len(took)/2]
}

func (r *report) save(path string) error {
	wire, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	return os.WriteFile(path, append(wire, '\n'), 0o600)
}

// saveTables writes the tables next to the report.
func (r *report) saveTables(path string) error {
	var text strings.Builder
	r.printTable(&text)
	return os.WriteFile(path, []byte(text.String()), 0o600)
}

// tables aligns columns to the right; every cell ends with a tab.
func tables(out io.Writer) *tabwriter.Writer {
	return tabwriter.NewWriter(out, 0, 4, 2, ' ', tabwriter.AlignRight)
}

func (r *report) printTable(out io.Writer) {
	w := tables(out)
	_, _ = fmt.Fprintln(w, "transition\trunning requests\tweights moved MB\texpert MB\tlower bound MB\tnon-expert MB\tKV MB\tKV in flips MB\tflips\tprepare s\tstage s\tflip s\tretire s\t")
	for _, t := range r.Transitions {
		s, record := t.Record.Seconds, t.Record
		_, _ = fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%.2f\t%.2f\t%.2f\t%.2f\t\n", t.Name, t.Streams, mb(t.moved()), mb(record.ExpertBytes), mb(record.ExpertBoundBytes),
			mb(record.DenseBytes), mb(record.Bytes.KV), mb(record.Bytes.KV-record.Bytes.KVAhead), record.PlannedFlips, s.Prepare, s.Stage, s.Flip, s.Retire)
	}
	_ = w.Flush()
	r.printMemory(out)
	r.printSeen(out)
	r.printHeat(out)
	r.printActs(out)
	r.printBursts(out)
	_, _ = fmt.Fprintf(out, "\n%s requests, %s tokens; median step %.1f ms, longest inter-token latency %s ms; time to first token p50 %s ms, p99 %s ms, longest %s ms\n",
		thousands(r.Requests), thousands(r.Tokens), r.Step*1e3, milliseconds(r.LongestGap), milliseconds(r.FirstToken), milliseconds(r.FirstToken99), milliseconds(r.WorstFirst))
	q := r.Refusals
	_, _ = fmt.Fprintf(out, "HTTP 429: %d, HTTP 503: %d (after a failure: %d and %d); retried by the gateway: %.0f (before the first failure: %.0f; sent to a leaving rank: %.0f); mismatched tokens: %.0f\n",
		q.Quiet429+q.Acts429, q.Quiet503+q.Acts503, q.Acts429, q.Acts503, r.Gateway.Replays, r.GatewayBefore.Replays, r.Gateway.Orphaned, r.Gateway.Conflicts)
	if r.Oracle != nil {
		r.Oracle.print(out)
	}
	_, _ = fmt.Fprintf(out, "lost requests: %d", r.Lost)
	if r.Compared {
		_, _ = fmt.Fprintf(out, "; requests that differ from the one-rank run: %d", r.Different)
	}
	_, _ = fmt.Fprintln(out)
	for _, broken := range r.Broken {
		_, _ = fmt.Fprintf(out, "broken promise: %s\n", broken)
	}
}

// printMemory prints the weights on the fullest rank during each transition, as counted by its agent and as planned,
// and the KV reserved after it.
func (r *report) printMemory(out io.Writer) {
	if len(r.Transitions) == 0 {
		return
	}
	w := tables(out)
	_, _ = fmt.Fprintln(w, "\npeak weight memory of the fullest rank\tmeasured MB\tplanned MB\tKV tokens reserved at the end, fullest rank\tmean\t")
	for _, t := range r.Transitions {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t\n", t.Name, mb(t.Record.PeakBytes), mb(t.Record.PlannedPeakBytes), t.Record.KVMaxTokens, t.Record.KVMeanTokens)
	}
	_ = w.Flush()
}

// verdict summarizes a local run in one sentence.
func (r *report) verdict(file string) string {
	return fmt.Sprintf("Every promise held: of %s requests (%s tokens) 0 were lost, and all tokens match a run on one rank. Full report: %s",
		thousands(r.Requests), thousands(r.Tokens), file)
}

const ratioGoal = 3

// printBench prints a line per transition, and the summary over the rounds: the worst of the transitions' median
// ratios, and of their median longest inter-token gaps in steps.
func (r *report) printBench(out io.Writer) error {
	encoder := json.NewEncoder(out)
	var names []string
	byName := map[string][]*transition{}
	for _, t := range r.Transitions {
		if err := encoder.Encode(t); err != nil {
			return err
		}
		if byName[t.Name] == nil {
			names = append(names, t.Name)
		}
		byName[t.Name] = append(byName[t.Name], t)
	}
	metrics := map[string]any{"lost": r.Lost, "longest_gap_seconds": r.LongestGap, "step_seconds": r.Step,
		"ordinary_gap_seconds": r.Ordinary, "requests": r.Requests, "tokens": r.Tokens}
	var worst *transition
	gapSteps := 0.
	for _, name := range names {
		rounds := byName[name]
		slices.SortFunc(rounds, func(a, b *transition) int { return cmp.Compare(a.Ratio, b.Ratio) })
		median := rounds[len(rounds)/2]
		metrics[name] = median.Ratio
		var gaps []float64
		for _, t := range rounds {
			gaps = append(gaps, t.LongestGap/r.Step)
		}
		slices.Sort(gaps)
		gapSteps = max(gapSteps, gaps[len(gaps)/2])
		metrics["rounds"] = len(rounds)
		if worst == nil || median.Ratio >= worst.Ratio {
			worst = median
		}
	}
	metrics["longest_gap_steps"] = gapSteps
	return encoder.Encode(map[string]any{"bench": "transition", "value": worst.Silent, "unit": "s without a token, worst transition",
		"ceiling": worst.Copy + 2*r.Step, "ratio": worst.Ratio, "goal": ratioGoal,
		"pass": worst.Ratio <= ratioGoal && r.Lost == 0 && r.Tokens > 0, "metrics": metrics,
		"env": map[string]any{"cpus": runtime.NumCPU(), "go": runtime.Version(), "ranks": r.Ranks, "seed": r.Seed}})
}
