package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
)

// local runs the demo on a world of local processes.
func local(ctx context.Context, o options) error {
	if o.ranks < 1 {
		return fmt.Errorf("--ranks %d: at least 1", o.ranks)
	}
	o.rounds, o.brief = 1, true
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
	r := &report{Seed: o.seed, Ranks: o.ranks, around: o.pause, local: true}
	results, err := underLoad(ctx, o, trace, r)
	if err != nil {
		return err
	}
	var reference []*load.Result
	if !o.bench { // the bench measures time; the demo checks the tokens
		if reference, err = oneRank(ctx, o, results); err != nil {
			return err
		}
	}
	return finish(o, r, results, reference)
}

func start(ctx context.Context, o options, sub string, ranks int, pods []int) (*harness.World, error) {
	h := harness.Options{Root: o.root, Dir: filepath.Join(o.out, sub), Checkpoint: o.checkpoint, Pods: pods, Restart: sub == "world" && !o.bench}
	if !o.bench {
		h.MaxTokens = longestStream + 512
	}
	if sub == "world" {
		h.LeastStep = o.leastStep
	}
	w, err := harness.Start(ctx, h)
	if err != nil {
		return nil, err
	}
	first, err := w.Apply(ctx, ranks, "ExpertParallel", nil, progressOf("first layout"))
	terminal.stop()
	if err != nil {
		w.Stop()
		return nil, fmt.Errorf("first layout: %w", err)
	}
	if sub == "world" {
		say("%d ranks serve: %s MB of weights read from the checkpoint in %.1f s", ranks, mb(first.CheckpointBytes), first.TotalSeconds)
	}
	return w, nil
}

func client(w *harness.World) *load.Client {
	return &load.Client{URL: w.URL(), Model: w.Model(), HTTP: &http.Client{}}
}

// underLoad runs the transitions while requests run.
func underLoad(ctx context.Context, o options, trace *load.Trace, r *report) ([]*load.Result, error) {
	say("starting the agents and engines of %d ranks as local processes; logs are in %s", o.ranks+o.joiners(), filepath.Join(o.out, "world"))
	// Pods of one rank first, so that one rank can die separately.
	w, err := start(ctx, o, "world", o.ranks, append([]int{1, 1}, harness.Pods(o.ranks)...))
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	stop, played, long := make(chan struct{}), make(chan []*load.Result, 1), make(chan *load.Result, 1)
	counters := &load.Counters{}
	clients := client(w)
	clients.Counters = counters
	go func() { played <- clients.Play(ctx, trace, o.atOnce, stop) }()
	var failed error
	if !o.bench {
		say("%d streams of a chat trace are running, and one long stream across all transitions", o.atOnce)
		if failed = sleep(ctx, time.Second); failed == nil {
			r.FirstPlacement, failed = placementNow(ctx, w)
		}
		go func() { long <- clients.Do(ctx, longRequest(o, counters)) }()
	} else {
		long <- nil
	}
	for _, s := range slices.Repeat(steps(o.ranks, o.joiners()), o.rounds) {
		if failed != nil {
			break
		}
		if failed = sleep(ctx, o.pause-settle); failed != nil {
			break
		}
		record, err := w.Apply(ctx, s.ranks, s.mode, nil, progressOf(s.name))
		terminal.stop()
		if err != nil {
			failed = fmt.Errorf("%s: %w", s.name, err)
			if died := w.Died(); died != "" {
				failed = fmt.Errorf("%w\n%s", failed, died)
			}
			break
		}
		t := &transition{Name: s.name, Resize: s.resize, Record: record}
		if failed = sleep(ctx, settle); failed == nil && !o.bench {
			t.Placement, failed = placementNow(ctx, w)
		}
		say("%s, %s", moved(t), clientView(counters, record.Started, record.Ended))
		r.Transitions = append(r.Transitions, t)
	}
	if failed == nil {
		r.GatewayBefore, failed = w.GatewayCounts(ctx)
	}
	if failed == nil && !o.bench {
		failed = acts(ctx, o, w, r, counters)
	}
	if failed == nil {
		failed = sleep(ctx, o.pause)
	}
	if failed == nil {
		r.Gateway, failed = w.GatewayCounts(ctx)
	}
	close(stop)
	if failed != nil {
		w.Stop() // so that no request waits forever
		<-played
		<-long
		return nil, failed
	}
	results := <-played
	if s := <-long; s != nil {
		r.Stream = newStream(s)
		results = append([]*load.Result{s}, results...)
	}
	return results, nil
}

// repeatOnOneRank sends the requests of results once more, and reports progress.
func repeatOnOneRank(ctx context.Context, o options, c *load.Client, results []*load.Result, atOnce int) []*load.Result {
	c.Counters = &load.Counters{}
	defer during(o.brief, func() string {
		return fmt.Sprintf("one-rank run: %d of %d requests done", c.Counters.Now().Done, len(results))
	})()
	return c.Again(ctx, results, atOnce)
}

// oneRank runs the same requests on one rank, without transitions.
func oneRank(ctx context.Context, o options, results []*load.Result) ([]*load.Result, error) {
	w, err := start(ctx, o, "one", 1, []int{1})
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	say("running the same %d requests on one rank, to compare all tokens", len(results))
	return repeatOnOneRank(ctx, o, client(w), results, o.atOnce), nil
}

// acts runs the acts in which a process is killed. The world is as at the start, and ends in the other mode.
func acts(ctx context.Context, o options, w *harness.World, r *report, counters *load.Counters) error {
	for _, play := range []func(context.Context, options, *harness.World) (*act, error){rankDies, operatorDies} {
		if err := sleep(ctx, o.pause); err != nil {
			return err
		}
		limited, cancel := context.WithTimeout(ctx, time.Minute)
		a, err := play(limited, o, w)
		cancel()
		if err != nil {
			return err
		}
		if err := sleep(ctx, settle); err != nil {
			return err
		}
		say("%s, %s", a.outcome(), clientView(counters, a.at, a.whole))
		r.Acts = append(r.Acts, a)
	}
	return nil
}

// rankDies kills agent and engine of a rank with -9. The world continues without the rank, and grows as soon as another
// one is available.
func rankDies(ctx context.Context, o options, w *harness.World) (*act, error) {
	keeper, err := w.Keep(o.ranks, "ExpertParallel", nil)
	if err != nil {
		return nil, err
	}
	defer keeper.Kill()
	a := &act{Name: rankActName, at: time.Now()}
	after := func(what string) func(harness.Did) bool {
		return func(d harness.Did) bool { return d.Did == what && d.Error == "" && d.At.After(a.at) }
	}
	w.KillPod(0)
	repaired, err := keeper.Await(ctx, "a repair", after("repair"))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.Name, err)
	}
	a.ReadAgain = repaired.Record.Bytes.Checkpoint
	if _, err := w.AddPod(ctx, 1); err != nil {
		return nil, fmt.Errorf("%s: %w", a.Name, err)
	}
	if _, err := keeper.Await(ctx, "full width", after("apply")); err != nil {
		return nil, fmt.Errorf("%s: %w", a.Name, err)
	}
	a.ended(repaired.At)
	return a, nil
}

// operatorDies kills the operator when it has just permitted a flip of a switch; another one continues.
func operatorDies(ctx context.Context, o options, w *harness.World) (*act, error) {
	a := &act{Name: operatorActName}
	dying, kill := context.WithCancel(ctx)
	defer kill()
	_, err := w.Apply(dying, o.ranks, "TensorParallel", nil, func(e harness.Event) {
		if e.Phase == "flip" && a.at.IsZero() {
			a.at = time.Now()
			kill()
		}
	})
	if err == nil || a.at.IsZero() {
		return nil, fmt.Errorf("%s: it was not killed in the middle: %w", a.Name, cmp.Or(err, errors.New("it ended well")))
	}
	if err := sleep(ctx, time.Second); err != nil { // time without an operator
		return nil, err
	}
	keeper, err := w.Keep(o.ranks, "TensorParallel", nil)
	if err != nil {
		return nil, err
	}
	defer keeper.Kill()
	if _, err := keeper.Await(ctx, "the rest of the switch", func(d harness.Did) bool { return d.Did == "apply" && d.Error == "" }); err != nil {
		return nil, fmt.Errorf("%s: %w", a.Name, err)
	}
	a.ended(time.Time{})
	return a, nil
}
