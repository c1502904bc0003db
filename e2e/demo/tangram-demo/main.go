// tangram-demo takes a world through four transitions under load and checks every token
// against a run on one rank. Exit code 1 if a promise is broken.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
)

type options struct {
	seed       uint64
	ranks      int
	out, root  string
	checkpoint string
	bench      bool
	span       time.Duration // of one round of the trace
	pause      time.Duration // before and between transitions
	atOnce     int
	rounds     int // of all transitions; the bench takes medians
}

var errPromise = errors.New("a promise was broken")

func main() { os.Exit(command()) }

// command gives the exit code.
func command() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var o options
	c := &cobra.Command{Use: "tangram-demo", Short: "a world of ranks changes shape while it serves", Args: cobra.NoArgs,
		SilenceErrors: true, SilenceUsage: true, RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o) }}
	f := c.Flags()
	f.Uint64Var(&o.seed, "seed", 1, "of prompts and sampling")
	f.IntVar(&o.ranks, "ranks", 4, "ranks at the start")
	f.StringVar(&o.out, "out", "build/demo", "folder of logs and report.json; made anew")
	f.StringVar(&o.root, "root", ".", "of the repository")
	f.StringVar(&o.checkpoint, "checkpoint", "", "folder; default build/models/demo")
	f.BoolVar(&o.bench, "bench", false, "print JSON lines of the transition bench instead of the table")
	f.DurationVar(&o.span, "span", 12*time.Second, "in which the 80 requests of the trace arrive, before they start again")
	f.DurationVar(&o.pause, "pause", 3*time.Second, "before each transition")
	f.IntVar(&o.atOnce, "at-once", 8, "requests under way at most")
	if err := c.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "tangram-demo:", err)
		return 1
	}
	return 0
}

func run(ctx context.Context, o options) error {
	if o.ranks < 1 {
		return fmt.Errorf("--ranks %d: at least 1", o.ranks)
	}
	o.rounds = 1
	if o.bench {
		o.rounds, o.pause = 7, time.Second
		if os.Getenv("QUICK") == "1" {
			o.rounds = 3
		}
	}
	trace, err := load.NewTrace(o.seed, o.span)
	if err != nil {
		return err
	}
	r := &report{Seed: o.seed, Ranks: o.ranks}
	results, err := underLoad(ctx, o, trace, r)
	if err != nil {
		return err
	}
	var reference []*load.Result
	if !o.bench { // the bench is about time; the demo proves the tokens
		if reference, err = oneRank(ctx, o, trace, len(results)); err != nil {
			return err
		}
	}
	if err := r.judge(results, reference, !o.bench); err != nil {
		return err
	}
	if err := r.save(filepath.Join(o.out, "report.json")); err != nil {
		return err
	}
	if o.bench {
		return r.printBench(os.Stdout)
	}
	r.printTable(os.Stdout)
	if len(r.Broken) > 0 {
		return fmt.Errorf("%w: %v; logs are in %s", errPromise, r.Broken, o.out)
	}
	return nil
}

// step of the demo.
type step struct {
	name, mode string
	ranks      int
	resize     bool
}

func steps(ranks int) []step {
	more := ranks + 2
	return []step{
		{fmt.Sprintf("%d -> %d ranks", ranks, more), "Expert", more, true},
		{"Expert -> Tensor", "Tensor", more, false},
		{"Tensor -> Expert", "Expert", more, false},
		{fmt.Sprintf("%d -> %d ranks", more, ranks), "Expert", ranks, true},
	}
}

func start(ctx context.Context, o options, sub string, ranks, most int) (*harness.World, error) {
	say("starting %d ranks", most)
	w, err := harness.Start(ctx, harness.Options{Root: o.root, Dir: filepath.Join(o.out, sub), Checkpoint: o.checkpoint, Pods: harness.Pods(most)})
	if err != nil {
		return nil, err
	}
	first, err := w.Apply(ctx, ranks, "Expert", nil, newLine("first layout").event)
	if err != nil {
		w.Stop()
		return nil, fmt.Errorf("first layout: %w", err)
	}
	say("first layout: %s from the checkpoint in %.1f s", mib(first.CheckpointBytes), first.TotalSeconds)
	return w, nil
}

func client(w *harness.World) *load.Client {
	return &load.Client{URL: w.URL(), Model: w.Model(), HTTP: &http.Client{}}
}

// underLoad goes through the transitions while requests run.
func underLoad(ctx context.Context, o options, trace *load.Trace, r *report) ([]*load.Result, error) {
	w, err := start(ctx, o, "world", o.ranks, o.ranks+2)
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	stop, played := make(chan struct{}), make(chan []*load.Result, 1)
	go func() { played <- client(w).Play(ctx, trace, o.atOnce, stop) }()
	var failed error
	for _, s := range slices.Repeat(steps(o.ranks), o.rounds) {
		if failed = sleep(ctx, o.pause); failed != nil {
			break
		}
		line := newLine(s.name)
		record, err := w.Apply(ctx, s.ranks, s.mode, nil, line.event)
		if err != nil {
			failed = fmt.Errorf("%s: %w", s.name, err)
			if died := w.Died(); died != "" {
				failed = fmt.Errorf("%w\n%s", failed, died)
			}
			break
		}
		line.end(record)
		r.Transitions = append(r.Transitions, &transition{Name: s.name, Resize: s.resize, Record: record})
	}
	if failed == nil {
		failed = sleep(ctx, o.pause)
	}
	close(stop)
	if failed != nil {
		w.Stop() // so that no request waits for ever
		<-played
		return nil, failed
	}
	return <-played, nil
}

// oneRank runs the same requests where nothing ever moves.
func oneRank(ctx context.Context, o options, trace *load.Trace, n int) ([]*load.Result, error) {
	w, err := start(ctx, o, "one", 1, 1)
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	say("the same %d requests on one rank", n)
	return client(w).Repeat(ctx, trace, n, o.atOnce), nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func (r *report) save(path string) error {
	wire, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(wire, '\n'), 0o600)
}
