package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"tangram.dev/e2e/harness"
)

const (
	scaleUpKV    = 128 << 20
	scaleUpAfter = 2500 * time.Millisecond // observed after a scale-up
)

// ourWay is Tangram's scale-up, with or without some of its parts.
type ourWay struct {
	name       string
	standby    bool // the pod is running, with its imports done and without weights
	checkpoint bool // the new rank reads weights from the checkpoint, not from peers
	private    bool // engines copy their experts into private memory
}

// scaleOurs measures these ways in order: 2 -> 3 with a new pod, then back to 2, and the pod is removed. The ways share
// a world until an error, or until the engines need other flags.
func scaleOurs(ctx context.Context, o options, round int, ways []ourWay, discarded *int, told func(*scaled) error) error {
	var w *harness.World
	var private bool
	stop := func() {
		if w != nil {
			w.Stop()
			w = nil
		}
	}
	defer stop()
	for _, way := range ways {
		found, err := again(way.name, discarded, func() (found *scaled, err error) {
			if w != nil && private != way.private {
				stop()
			}
			if private = way.private; w == nil {
				if w, err = startOurs(ctx, o, private); err != nil {
					return nil, err
				}
			}
			if found, err = way.scale(ctx, w, round); err != nil {
				stop()
			}
			return found, err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", way.name, err)
		}
		if err := told(found); err != nil {
			return err
		}
	}
	return nil
}

// startOurs starts a world of two ranks with forked engines that copy their experts, or do not.
func startOurs(ctx context.Context, o options, private bool) (*harness.World, error) {
	h := scaleUpWorld(o, "ours", scaleUpRanks)
	if err := vllmOn(&h, ""); err != nil {
		return nil, err
	}
	if private {
		h.EngineFlags = append([]string{"--private-experts"}, h.EngineFlags...)
	}
	w, err := harness.Start(ctx, h)
	if err != nil {
		return nil, err
	}
	if _, err := w.Apply(ctx, scaleUpRanks, "ExpertParallel", nil, nil); err != nil {
		w.Stop()
		return nil, err
	}
	return w, nil
}

func (way ourWay) scale(ctx context.Context, w *harness.World, round int) (found *scaled, err error) {
	found = &scaled{Way: way.name, Round: round}
	pod := -1
	if way.standby {
		if pod, err = w.AddPod(ctx, 1); err != nil {
			return nil, err
		}
	}
	l, err := found.under(ctx, w, scaleUpSettle)
	if err != nil {
		return nil, err
	}
	defer l.drop()
	c := commanded{at: time.Now()}
	if !way.standby {
		if pod, err = w.AddPod(ctx, 1); err != nil {
			return nil, err
		}
	}
	apply := func() (*harness.Record, error) { return w.Apply(ctx, scaleUpRanks+1, "ExpertParallel", nil, nil) }
	if way.checkpoint {
		apply = func() (*harness.Record, error) { return w.ApplyFromCheckpoint(ctx, scaleUpRanks+1) }
	}
	record, err := apply()
	if err != nil {
		return nil, err
	}
	if err := l.done(ctx, c); err != nil {
		return nil, err
	}
	found.Moved = &record.Bytes
	found.Phases = map[string]float64{"flips": float64(record.PlannedFlips), "apply": record.TotalSeconds, "plan": record.Seconds.Plan, "prepare": record.Seconds.Prepare, "stage": record.Seconds.Stage, "flip": record.Seconds.Flip,
		"retire": record.Seconds.Retire}
	if _, err := w.Apply(ctx, scaleUpRanks, "ExpertParallel", nil, nil); err != nil {
		return nil, err
	}
	w.KillPod(pod)
	return found, sleep(ctx, time.Second) // time to free its memory
}

// scaleUpLoad is a scale-up under load, from the window before the command on.
type scaleUpLoad struct {
	s         *scaled
	a         *askers
	began     time.Time // of the window before
	endMemory func() error
}

// under starts the load of a world: half of scaleUpSettle, and then the window before the command.
func (s *scaled) under(ctx context.Context, w *harness.World, before time.Duration) (*scaleUpLoad, error) {
	l := &scaleUpLoad{s: s, a: startAskers(ctx, w.Model(), w.URL())}
	err := sleep(ctx, scaleUpSettle/2)
	if err == nil {
		l.began = time.Now()
		err = sleep(ctx, before)
	}
	if err == nil {
		l.endMemory, err = s.watch(s.Round)
	}
	if err != nil {
		l.drop()
		return nil, err
	}
	return l, nil
}

// done ends the command; the clients' view includes a short time after it.
func (l *scaleUpLoad) done(ctx context.Context, c commanded) error {
	c.done = time.Now()
	if err := sleep(ctx, scaleUpAfter); err != nil {
		return err
	}
	if err := l.endMemory(); err != nil {
		return err
	}
	l.s.see(c, l.began, l.a.end())
	l.a = nil
	return nil
}

// drop stops the clients if they are running.
func (l *scaleUpLoad) drop() {
	if l.a != nil {
		l.a.end()
		l.a = nil
	}
}

// watch watches memory in round 0; `end` stops it.
func (s *scaled) watch(round int) (end func() error, err error) {
	if round > 0 {
		return func() error { return nil }, nil
	}
	before, err := harness.ResidentBelow()
	if err != nil {
		return nil, err
	}
	s.Rest = before.Others + before.Shared
	w := watchMemory()
	return func() (err error) {
		s.Peak, s.Samples, err = w.end()
		return err
	}, nil
}

// scaleUpWorld returns the options of a world with this many pods of one rank.
func scaleUpWorld(o options, dir string, ranks int) harness.Options {
	pods := make([]int, ranks)
	for i := range pods {
		pods[i] = 1
	}
	return harness.Options{Root: o.root, Dir: filepath.Join(o.out, dir), Checkpoint: o.checkpoint, Pods: pods, Granule: 32, Memory: 1712 << 20, KV: scaleUpKV, SpareBanks: 1, MaxTokens: 512}
}

// stockWay scales engines that cannot change their shape: it starts another world.
type stockWay struct {
	name      string
	width     int  // ranks of the new world
	stopFirst bool // the old world stops before the new one starts
	halfKV    bool // each world has half of the KV, because they share the memory of their ranks
	both      bool // both keep serving
}

// start starts a world with unforked engines, which do their own imports, and applies its layout.
func (way stockWay) start(ctx context.Context, o options, dir string, ranks int) (*harness.World, error) {
	h := scaleUpWorld(o, dir, ranks)
	if err := vllmOn(&h, ""); err != nil {
		return nil, err
	}
	h.Engine, h.Forked = h.PythonEngine("vllm", []string{"agent/vllm"}, "-m", "tangram_vllm.main"), false
	if way.halfKV {
		h.KV /= 2
	}
	w, err := harness.Start(ctx, h)
	if err != nil {
		return nil, err
	}
	if _, err := w.Apply(ctx, ranks, "ExpertParallel", nil, nil); err != nil {
		w.Stop()
		return nil, err
	}
	return w, nil
}

func (way stockWay) scale(ctx context.Context, o options, round int) (found *scaled, err error) {
	found = &scaled{Way: way.name, Round: round}
	old, err := way.start(ctx, o, "old", scaleUpRanks)
	if err != nil {
		return nil, err
	}
	defer old.Stop()
	l, err := found.under(ctx, old, scaleUpBefore)
	if err != nil {
		return nil, err
	}
	defer l.drop()
	was := old.URL()
	c := commanded{at: time.Now()}
	if way.stopFirst {
		old.Stop()
		found.Phases = map[string]float64{"stop": time.Since(c.at).Seconds()}
	}
	next, err := way.start(ctx, o, "new", way.width)
	if err != nil {
		return nil, err
	}
	defer next.Stop()
	c.url = next.URL()
	if way.both {
		l.a.to(was, c.url)
	} else {
		l.a.to(c.url)
	}
	for !way.both && !l.a.left(was) {
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return nil, err
		}
	}
	if !way.both {
		old.Stop()
	}
	return found, l.done(ctx, c)
}
