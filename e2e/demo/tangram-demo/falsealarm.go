package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
)

// simulated is a case of tangram-false-alarm.
type simulated struct {
	Case          string  `json:"case"`
	Median        float64 `json:"median_ms"`
	Sigma         float64 `json:"sigma"`
	Steps         int     `json:"steps"`
	Pauses        int     `json:"pauses"`
	MachinePauses int     `json:"machine_pauses"`
	Fences        int     `json:"fences"`
	Naive         int     `json:"naive"` // fences by a clock that does not check whether this process ran
}

// falseAlarm bench: counts fences while no process dies: an hour of simulated steps, then real ones while other
// processes use the cores.
func falseAlarm(ctx context.Context, o options) error {
	lines := json.NewEncoder(os.Stdout)
	out, err := exec.CommandContext(ctx, filepath.Join(o.root, "build/cxx/agent/engine/tangram-false-alarm")).Output()
	if err != nil {
		return fmt.Errorf("tangram-false-alarm: %w", err)
	}
	var steps, fences, naive int
	for text := bufio.NewScanner(bytes.NewReader(out)); text.Scan(); {
		var s simulated
		if err := json.Unmarshal(text.Bytes(), &s); err != nil {
			return fmt.Errorf("tangram-false-alarm: %q: %w", text.Text(), err)
		}
		if err := lines.Encode(s); err != nil {
			return err
		}
		steps, fences, naive = steps+s.Steps, fences+s.Fences, naive+s.Naive
	}
	span := 3 * time.Minute
	if os.Getenv("QUICK") == "1" {
		span = 20 * time.Second
	}
	results, repairs, err := beside(ctx, o, span)
	if err != nil {
		return err
	}
	lost, tokens := 0, 0
	for _, r := range results {
		if r.Err != nil {
			lost++
		}
		tokens += len(r.Tokens)
	}
	return lines.Encode(map[string]any{"bench": "false-alarm", "value": fences + repairs, "unit": "fences", "ceiling": 0, "ratio": 0,
		"metrics": map[string]any{"simulated_steps": steps, "simulated_fences": fences, "naive_fences": naive, "real_seconds": span.Seconds(),
			"real_fences": repairs, "tokens": tokens, "lost": lost},
		"env": map[string]any{"cpus": runtime.NumCPU(), "go": runtime.Version(), "ranks": recoveryRanks, "seed": o.seed}})
}

// beside loads a world next to one busy loop per core; it returns the number of repairs.
func beside(ctx context.Context, o options, span time.Duration) ([]*load.Result, int, error) {
	trace, err := load.NewTrace(o.seed, o.span)
	if err != nil {
		return nil, 0, err
	}
	pods := make([]int, recoveryRanks)
	for i := range pods {
		pods[i] = 1
	}
	w, err := harness.Start(ctx, harness.Options{Root: o.root, Dir: filepath.Join(o.out, "world"), Checkpoint: o.checkpoint, Pods: pods})
	if err != nil {
		return nil, 0, err
	}
	defer w.Stop()
	keeper, err := w.Keep(recoveryRanks, "ExpertParallel", nil)
	if err != nil {
		return nil, 0, err
	}
	defer keeper.Kill()
	if _, err := keeper.Await(ctx, "the first layout", func(d harness.Did) bool { return d.Did == "apply" && d.Error == "" }); err != nil {
		return nil, 0, err
	}
	others, end := context.WithCancel(ctx)
	defer end()
	for range runtime.NumCPU() {
		other := exec.CommandContext(others, "sh", "-c", "while :; do :; done")
		other.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := other.Start(); err != nil {
			return nil, 0, err
		}
		defer func() { end(); _ = other.Wait() }()
	}
	stop, played := make(chan struct{}), make(chan []*load.Result, 1)
	client := &load.Client{URL: w.URL(), Model: w.Model(), HTTP: &http.Client{}}
	go func() { played <- client.Play(ctx, trace, o.atOnce, stop) }()
	if err := sleep(ctx, span); err != nil {
		return nil, 0, err
	}
	close(stop)
	results, repairs := <-played, 0
	for _, d := range keeper.Did() {
		if d.Did == "repair" {
			repairs++
		}
	}
	return results, repairs, nil
}
