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
	"time"

	"github.com/spf13/cobra"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
)

// restartTokens of a request take the small model's engine seconds, in which it is killed.
const restartTokens = 400

func vllmRestartCommand() *cobra.Command {
	o := &options{}
	c := &cobra.Command{Use: "vllm-restart", Short: "Benchmark vllm-restart: time from the kill of a vLLM engine until it serves again", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return vllmRestart(cmd.Context(), *o) }}
	c.Flags().StringVar(&o.out, "out", "build/bench/vllm-restart", "folder for logs")
	o.rootFlag(c)
	return c
}

// vllmRestart bench: in a world of one rank the engine is killed in the middle of an answer. For comparison: an engine
// that is started without a fork, and the time of a stock vLLM process to its first token.
func vllmRestart(ctx context.Context, o options) (err error) {
	if o.root, err = filepath.Abs(o.root); err != nil {
		return err
	}
	if o.checkpoint, err = harness.Checkpoint(ctx, o.root, vllmPreset); err != nil {
		return err
	}
	lines := json.NewEncoder(os.Stdout)
	kills, colds := 5, 2
	if os.Getenv("QUICK") == "1" {
		kills, colds = 3, 1
	}
	forked, different, err := engineKills(ctx, o, true, kills)
	if err != nil {
		return err
	}
	if err := lines.Encode(map[string]any{"engine": "forked anew", "seconds": forked}); err != nil {
		return err
	}
	cold, alsoDifferent, err := engineKills(ctx, o, false, colds)
	if err != nil {
		return err
	}
	if err := lines.Encode(map[string]any{"engine": "started anew", "seconds": cold}); err != nil {
		return err
	}
	var stock map[string]float64 // the fastest
	for range colds {
		started, err := stockStart(ctx, o)
		if err != nil {
			return err
		}
		if err := lines.Encode(map[string]any{"engine": "stock vLLM", "seconds": started}); err != nil {
			return err
		}
		if stock == nil || started["first_token"] < stock["first_token"] {
			stock = started
		}
	}
	worst, middle := slices.Max(forked), median(forked)
	return lines.Encode(map[string]any{"bench": "vllm-restart", "value": middle, "unit": "s", "ceiling": stock["first_token"], "ratio": middle / stock["first_token"],
		"metrics": map[string]any{"worst_seconds": worst, "without_zygote_seconds": slices.Min(cold), "stock_import_seconds": stock["import"], "stock_seconds": stock["first_token"],
			"over_stock": middle / stock["first_token"], "kills": len(forked), "different": different + alsoDifferent},
		"env": map[string]any{"cpus": runtime.NumCPU(), "go": runtime.Version(), "model": vllmPreset}})
}

// engineKills returns the seconds from each kill to the next token of the answer in progress, and the number of answers
// that differ from an undisturbed one.
func engineKills(ctx context.Context, o options, forked bool, kills int) (seconds []float64, different int, err error) {
	h := harness.Options{Root: o.root, Dir: filepath.Join(o.out, fmt.Sprintf("forked-%t", forked)), Checkpoint: o.checkpoint, Pods: harness.Pods(1), Restart: true}
	h.VLLM()
	if h.EngineFlags = vllmFlags; !forked {
		h.Engine, h.Forked = h.PythonEngine("vllm", []string{"agent/vllm"}, "-m", "tangram_vllm.main"), false
	}
	w, err := harness.Start(ctx, h)
	if err != nil {
		return nil, 0, err
	}
	defer w.Stop()
	keeper, err := w.Keep(1, "ExpertParallel", nil)
	if err != nil {
		return nil, 0, err
	}
	defer keeper.Kill()
	if _, err := keeper.Await(ctx, "the first layout", func(d harness.Did) bool { return d.Did == "apply" && d.Error == "" }); err != nil {
		return nil, 0, err
	}
	request := load.Request{Prompt: []uint32{1, 2, 3, 5, 8, 13, 21}, MaxTokens: restartTokens, TopP: 1}
	ask := func(c *load.Counters) *load.Result {
		client := &load.Client{URL: w.URL(), Model: w.Model(), HTTP: &http.Client{}, Counters: c, Patience: 2 * time.Minute}
		return client.Do(ctx, request)
	}
	undisturbed := ask(nil)
	if undisturbed.Err != nil {
		return nil, 0, undisturbed.Err
	}
	for range kills {
		answered, counted := make(chan *load.Result, 1), &load.Counters{}
		go func() { answered <- ask(counted) }()
		for counted.Now().Tokens < restartTokens/8 {
			if err := sleep(ctx, time.Millisecond); err != nil {
				return nil, 0, err
			}
		}
		at := time.Now()
		w.KillEngine(0, 0)
		result := <-answered
		if result.Err != nil {
			return nil, 0, fmt.Errorf("an engine was killed, and its request lost: %w", result.Err)
		}
		if result.Differs(undisturbed) != "" {
			different++
		}
		// Tokens that the gateway had before the kill may arrive shortly after it. So the end of the longest pause
		// marks the recovery.
		back := result.Tokens[0].At
		longest := time.Duration(0)
		for i := 1; i < len(result.Tokens); i++ {
			if gap := result.Tokens[i].At.Sub(result.Tokens[i-1].At); gap > longest {
				longest, back = gap, result.Tokens[i].At
			}
		}
		seconds = append(seconds, back.Sub(at).Seconds())
		say("%.2f s from the kill to a token", seconds[len(seconds)-1])
		if err := sleep(ctx, 2*time.Second); err != nil {
			return nil, 0, err
		}
	}
	return seconds, different, nil
}

// stockStart returns the seconds of a stock vLLM process, on the same checkpoint and any processor, to the end of its
// imports and to a first token.
func stockStart(ctx context.Context, o options) (map[string]float64, error) {
	began := time.Now()
	s, err := startStock(ctx, o, o.checkpoint, "float32", "", fmt.Sprint(64<<20))
	if err != nil {
		return nil, err
	}
	defer s.stop()
	if _, err := s.ask([][]uint32{{1, 2, 3, 5, 8, 13, 21}}, 1); err != nil {
		return nil, fmt.Errorf("stock vLLM gave no token: %w", err)
	}
	return map[string]float64{"import": s.Ready.Import, "first_token": time.Since(began).Seconds()}, nil
}
