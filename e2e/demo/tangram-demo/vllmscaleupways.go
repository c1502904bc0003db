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
	scaleUpAfter = 2500 * time.Millisecond // after a scale-up, for what clients see then
)

// ourWay is Tangram's, with more or less of it.
type ourWay struct {
	name       string
	standby    bool // the pod is up, with its imports done and without weights
	checkpoint bool // weights of the new rank come from the checkpoint, not from peers
	private    bool // engines copy their experts into memory of their own
}

// scaleOurs goes these ways one after the other: 2 -> 3 by a pod that has not been there before, then back to 2, and the pod is taken away. They share a
// world as long as it goes well, and its engines have the same flags.
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

// startOurs is a world of two ranks whose engines are forked, and copy experts or do not.
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
	return found, sleep(ctx, time.Second) // its memory goes
}

// scaleUpLoad is a scale-up while clients ask, from the window before the command on.
type scaleUpLoad struct {
	s         *scaled
	a         *askers
	began     time.Time // the window before
	endMemory func() error
}

// under load of a world: clients ask for half of scaleUpSettle, and then for the window before the command.
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

// done is what was commanded: what clients see for a while after it counts, then all is told.
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

// drop the clients, if they ask still.
func (l *scaleUpLoad) drop() {
	if l.a != nil {
		l.a.end()
		l.a = nil
	}
}

// watch memory in round 0; `end` it.
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

// scaleUpWorld of so many pods of one rank.
func scaleUpWorld(o options, dir string, ranks int) harness.Options {
	pods := make([]int, ranks)
	for i := range pods {
		pods[i] = 1
	}
	return harness.Options{Root: o.root, Dir: filepath.Join(o.out, dir), Checkpoint: o.checkpoint, Pods: pods, Granule: 32, Memory: 1712 << 20, KV: scaleUpKV, SpareBanks: 1, MaxTokens: 512}
}

// stockWay is what is done with engines that cannot change their shape: another world is started.
type stockWay struct {
	name      string
	width     int  // of the new world
	stopFirst bool // the old world goes before the new one comes
	halfKV    bool // both have half of the KV, as they share the memory of their ranks
	both      bool // both serve on
}

// start a world of engines that are started as they are, by nobody who has done their imports, and give it its layout.
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
