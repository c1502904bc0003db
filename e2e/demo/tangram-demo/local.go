package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
)

// local demo: a world of processes.
func local(ctx context.Context, o options) error {
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
	return finish(o, r, results, reference)
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
