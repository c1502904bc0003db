package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
)

const recoveryRanks = 6

// blow is a kind of failure, and the actions that restart the failed processes.
type blow struct {
	Kind string // engine-kill, ...
	// repaired: the survivors continue after a repair. Otherwise only the struck process is affected, and no request
	// pauses.
	repaired bool
	strike   func(context.Context, *harness.World, int) error // at a pod
	back     func(context.Context, *harness.World, int) error
}

func nothing(context.Context, *harness.World, int) error { return nil }

func blows() []blow {
	kill := func(what func(*harness.World, int)) func(context.Context, *harness.World, int) error {
		return func(_ context.Context, w *harness.World, pod int) error { what(w, pod); return nil }
	}
	cut := func(ctx context.Context, w *harness.World, pod int) error { return w.Link(ctx, pod, false) }
	another := func(ctx context.Context, w *harness.World, _ int) error { _, err := w.AddPod(ctx, 1); return err }
	return []blow{
		{"engine-kill", true, kill(func(w *harness.World, pod int) { w.KillEngine(pod, 0) }), nothing},
		{"engine-stop", true, kill(func(w *harness.World, pod int) { w.HangEngine(pod, 0, true) }),
			kill(func(w *harness.World, pod int) { w.HangEngine(pod, 0, false) })},
		{"agent-kill", false, kill((*harness.World).KillAgent), nothing},
		{"agent-stop", false, kill(func(w *harness.World, pod int) { w.HangAgent(pod, true) }),
			kill(func(w *harness.World, pod int) { w.HangAgent(pod, false) })},
		{"pod-kill", true, kill((*harness.World).KillPod), another},
		{"node-cut", true, cut, func(ctx context.Context, w *harness.World, pod int) error { return w.Link(ctx, pod, true) }},
		{"node-power", true, func(ctx context.Context, w *harness.World, pod int) error { // link first: closes nothing
			err := cut(ctx, w, pod)
			w.KillPod(pod)
			return err
		}, another},
	}
}

// recovered has the times of one blow, in seconds.
type recovered struct {
	Kind     string  `json:"kind"`
	Round    int     `json:"round"`
	Total    float64 `json:"total_seconds"`     // to the last running request's first token; or the longest gap
	Detect   float64 `json:"detect_seconds"`    // to the start of the repair
	Fence    float64 `json:"fence_seconds"`     // until the survivors received the outcome
	Repair   float64 `json:"repair_seconds"`    // until the layout was repaired
	Replay   float64 `json:"replay_seconds"`    // from the repair to that token
	Prefill  float64 `json:"prefill_seconds"`   // that request's original time to first token, which its replay repeats
	Full     float64 `json:"full_seconds"`      // until all ranks are back
	Affected int     `json:"affected_requests"` // running at the blow
	Read     uint64  `json:"read_bytes"`        // from the checkpoint
}

// recovery bench: ranks of a world under load fail in every way, one after another.
func recovery(ctx context.Context, o options) error {
	if done, err := harness.IsolateNetwork(ctx); done || err != nil {
		return err
	}
	rounds := 10
	if os.Getenv("QUICK") == "1" {
		rounds = 1
	}
	all := blows()
	if o.only != "" {
		all = slices.DeleteFunc(all, func(b blow) bool { return b.Kind != o.only })
	}
	trace, err := load.NewTrace(o.seed, o.span)
	if err != nil {
		return err
	}
	pods := make([]int, recoveryRanks)
	for i := range pods {
		pods[i] = 1
	}
	w, err := harness.Start(ctx, harness.Options{Root: o.root, Dir: filepath.Join(o.out, "world"), Checkpoint: o.checkpoint, Pods: pods,
		Restart: true, Nodes: true})
	if err != nil {
		return err
	}
	defer w.Stop()
	keeper, err := w.Keep(recoveryRanks, "ExpertParallel", nil)
	if err != nil {
		return err
	}
	defer keeper.Kill()
	if _, err := keeper.Await(ctx, "the first layout", func(d harness.Did) bool { return d.Did == "apply" && d.Error == "" }); err != nil {
		return err
	}
	stop, played := make(chan struct{}), make(chan []*load.Result, 1)
	client := &load.Client{URL: w.URL(), Model: w.Model(), HTTP: &http.Client{}}
	go func() { played <- client.Play(ctx, trace, o.atOnce, stop) }()
	var deaths []*death
	for round := range rounds {
		for i, b := range all {
			if err := sleep(ctx, 2*time.Second); err != nil {
				return err
			}
			living := w.Living()
			d, err := strike(ctx, w, keeper, b, living[(round+i)%len(living)])
			if err != nil {
				return fmt.Errorf("%s, round %d: %w", b.Kind, round+1, err)
			}
			d.round = round + 1
			say("%s: at full width again after %.1f s", b.Kind, d.full.Sub(d.at).Seconds())
			deaths = append(deaths, d)
		}
	}
	if err := sleep(ctx, 2*time.Second); err != nil {
		return err
	}
	close(stop)
	return printRecovery(deaths, <-played, o)
}

// death is a blow, and the keeper's actions after it.
type death struct {
	blow
	round    int
	at, full time.Time
	repair   *harness.KeptRecord // nil: no repair was needed
}

func strike(ctx context.Context, w *harness.World, keeper *harness.Keeper, b blow, pod int) (*death, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	d := &death{blow: b, at: time.Now()}
	if err := b.strike(ctx, w, pod); err != nil {
		return nil, err
	}
	after := func(what string) func(harness.Did) bool {
		return func(did harness.Did) bool { return did.Did == what && did.Error == "" && did.At.After(d.at) }
	}
	if !b.repaired {
		if err := sleep(ctx, agentsAway); err != nil {
			return nil, err
		}
		d.full = time.Now()
		return d, b.back(ctx, w, pod)
	}
	repaired, err := keeper.Await(ctx, "a repair", after("repair"))
	if err != nil {
		return nil, err
	}
	d.repair = repaired.Record
	if err := b.back(ctx, w, pod); err != nil {
		return nil, err
	}
	if len(repaired.Record.Lost) > 0 {
		_, err = keeper.Await(ctx, "full width", after("apply"))
	}
	d.full = time.Now()
	return d, err
}

// agentsAway is how long an agent is unavailable without an effect on clients.
const agentsAway = 4 * time.Second

func (d *death) measure(results []*load.Result) *recovered {
	seconds := func(from, to time.Time) float64 { return to.Sub(from).Seconds() }
	out := &recovered{Kind: d.Kind, Round: d.round, Full: seconds(d.at, d.full)}
	last := d.at
	for _, r := range results {
		i := slices.IndexFunc(r.Tokens, func(t load.Token) bool { return t.At.After(d.at) })
		if i <= 0 { // not begun, or ended
			continue
		}
		out.Affected++
		if d.repair == nil {
			for ; i < len(r.Tokens) && r.Tokens[i].At.Before(d.full); i++ {
				out.Total = max(out.Total, seconds(r.Tokens[i-1].At, r.Tokens[i].At))
			}
			continue
		}
		// Tokens in transit to the client do not count as a recovery.
		for i < len(r.Tokens)-1 && r.Tokens[i].At.Before(d.repair.Started) {
			i++
		}
		if r.Tokens[i].At.After(last) {
			last = r.Tokens[i].At
			out.Prefill = seconds(r.Sent, r.Tokens[0].At)
		}
	}
	if d.repair == nil {
		return out
	}
	out.Detect, out.Read = seconds(d.at, d.repair.Started), d.repair.Bytes.Checkpoint
	out.Fence = d.repair.WaitSeconds + d.repair.FenceSeconds
	out.Repair = d.repair.TotalSeconds - out.Fence
	out.Total = seconds(d.at, last)
	out.Replay = max(0, out.Total-out.Detect-d.repair.TotalSeconds)
	return out
}

// printRecovery prints a line per blow, then the medians by kind, and the worst of all repaired ones.
func printRecovery(deaths []*death, results []*load.Result, o options) error {
	lines := json.NewEncoder(os.Stdout)
	lost, read, worst := 0, uint64(0), 0.0
	for _, r := range results {
		if r.Err != nil {
			lost++
			say("lost: request %d: %v", r.Request.Index, r.Err)
		}
	}
	totals := map[string][]float64{}
	for _, d := range deaths {
		r := d.measure(results)
		if err := lines.Encode(r); err != nil {
			return err
		}
		totals[r.Kind], read = append(totals[r.Kind], r.Total), max(read, r.Read)
		if d.repaired {
			worst = max(worst, r.Total)
		}
	}
	step := (&report{}).medianStep(results)
	metrics := map[string]any{"blows": len(deaths), "requests": len(results), "lost": lost, "worst_seconds": worst, "step_seconds": step}
	for kind, values := range totals {
		metrics[strings.ReplaceAll(kind, "-", "_")+"_seconds"] = median(values)
	}
	// No recovery can be faster than a plain copy of the bytes read again, and a step.
	ceiling := copySeconds(read) + step
	return lines.Encode(map[string]any{"bench": "recovery", "value": worst, "ceiling": ceiling, "ratio": worst / ceiling,
		"unit":    "s from the worst blow to 1 of 6 ranks to the first token of the last running request",
		"metrics": metrics, "env": map[string]any{"cpus": runtime.NumCPU(), "go": runtime.Version(), "ranks": recoveryRanks, "seed": o.seed}})
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
