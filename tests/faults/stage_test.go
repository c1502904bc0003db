package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
	"tangram.dev/tests/internal/worlds"
)

const (
	startPods = 4
	room      = 400 // pods that may be added
	settle    = 45 * time.Second
	look      = 20 * time.Millisecond
	busy      = 2 * time.Second
	answer    = 50              // tokens at most: each case waits for the last one
	tries     = 4               // of a play until what it is for was passed
	reach     = 8 * time.Second // for a point that the transition passes when nobody dies
)

// stage is a world that cases play on, one after another, as long as they end well.
type stage struct {
	*harness.World
	keeper    *harness.Keeper
	trace     *load.Trace
	reference []*load.Result // of a quiet world
}

func newStage(t *testing.T) *stage {
	t.Helper()
	pods := slices.Repeat([]int{1}, startPods)
	w := worlds.StartTiny(t, harness.Options{Pods: pods, Restart: true, LeaveRoom: room, FaultDirs: true})
	s := &stage{World: w, trace: worlds.NewTrace(t, 9, 3*time.Second)}
	s.trace.MaxAnswer = answer
	t.Cleanup(func() {
		if s.keeper != nil {
			s.keeper.Kill()
		}
	})
	require.NoError(t, s.lead(t.Context(), four))
	s.reference = worlds.Client(w).Repeat(t.Context(), s.trace, 24, 6)
	for _, r := range s.reference {
		require.NoError(t, r.Err)
	}
	return s
}

// keep the world in a shape from now on.
func (s *stage) keep(to shape) error {
	if s.keeper != nil {
		s.keeper.Kill()
	}
	var keeper *harness.Keeper
	var err error
	if to.placed != nil {
		keeper, err = s.KeepPlacement(to.ranks, to.placed.everyLayer(), nil)
	} else {
		keeper, err = s.Keep(to.ranks, to.mode, nil)
	}
	s.keeper = keeper
	return err
}

// lead the world to a shape and wait until it is there.
func (s *stage) lead(ctx context.Context, to shape) error {
	if err := s.keep(to); err != nil {
		return err
	}
	return s.await(ctx, to)
}

// await a world that is wholly as wanted: width, mode, placement, all agents and engines there, nobody in
// the middle of anything, every pool adds up. An error tells what was wrong last.
func (s *stage) await(ctx context.Context, to shape) error {
	ctx, cancel := context.WithTimeout(ctx, settle)
	defer cancel()
	var last error
	for {
		all, err := s.Status(ctx)
		if err == nil {
			if err = unlike(all, to); err == nil {
				return nil
			}
		}
		if ctx.Err() == nil { // else it is the asking that was broken off
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the world is not as wanted after %v: %w", settle, last)
		case <-time.After(look):
		}
	}
}

// unlike says in what a world is not as wanted; nil: in nothing.
func unlike(all []*tangramv1.StatusResponse, to shape) error {
	var l *tangramv1.Layout
	members := 0
	for _, a := range all {
		for _, r := range a.Ranks {
			switch {
			case r.MemoryFree+r.MemoryMapped != r.MemoryBytes:
				return fmt.Errorf("pool of %s: %d free + %d mapped of %d", r.Member.Id, r.MemoryFree, r.MemoryMapped, r.MemoryBytes)
			case r.Transition.GetPhase() > tangramv1.Phase_PHASE_IDLE:
				return fmt.Errorf("%s is in %v of attempt %d: %s", r.Member.Id, r.Transition.Phase, r.Transition.Attempt, r.Transition.Error)
			case !r.Engine.GetAttached():
				return fmt.Errorf("%s has no engine", r.Member.Id)
			case !r.InWorld:
				if r.MemoryMapped != 0 {
					return fmt.Errorf("%s is in no layout and holds %d bytes", r.Member.Id, r.MemoryMapped)
				}
				continue
			case r.Engine.Stopped:
				return fmt.Errorf("%s stands still, unreachable %v", r.Member.Id, r.Engine.Unreachable)
			}
			members++
			if l != nil && l.Epoch != a.Layout.Epoch {
				return fmt.Errorf("epochs %d and %d", l.Epoch, a.Layout.Epoch)
			}
			l = a.Layout
		}
	}
	want := layout.Expert
	if to.mode == "Tensor" {
		want = layout.Tensor
	}
	if members != to.ranks || len(l.GetMembers()) != to.ranks || !layout.Is(l, want) {
		return fmt.Errorf("%d ranks in the world, its layout of epoch %d has %d; wanted %d, %s", members, l.GetEpoch(), len(l.GetMembers()), to.ranks, to.mode)
	}
	return misplaced(l, to)
}

// misplaced says in what a layout has not the wanted placement.
func misplaced(l *tangramv1.Layout, to shape) error {
	is := layout.PlacementOf(l)
	switch {
	case to.placed != nil && !reflect.DeepEqual(is, to.placed.everyLayer()):
		return fmt.Errorf("the layout of epoch %d has experts at %v, wanted %v in every layer", l.Epoch, is, *to.placed)
	case to.placed == nil && layout.Shape{Placement: is}.Replicates():
		return fmt.Errorf("the layout of epoch %d has copies of experts, wanted none: %v", l.Epoch, is)
	}
	return nil
}

// begin a transition under load. end stops the load and gives what came of it.
func (s *stage) begin(ctx context.Context, tr transition, victim int) (end func() []*load.Result, err error) {
	halt, played := make(chan struct{}), make(chan []*load.Result, 1)
	go func() { played <- worlds.Client(s.World).Play(ctx, s.trace, 2*startPods, halt) }()
	end = func() []*load.Result { close(halt); return <-played }
	s.awaitBusy(ctx)
	if tr.dies {
		s.KillPod(victim)
		return end, nil
	}
	return end, s.keep(tr.to)
}

// awaitBusy until each rank of the layout in force serves a request, or for a while: which rank serves how many is
// the gateway's choice.
func (s *stage) awaitBusy(ctx context.Context) {
	for end := time.Now().Add(busy); time.Now().Before(end); time.Sleep(look) {
		all, err := s.Status(ctx)
		idle := err != nil
		for _, a := range all {
			for _, r := range a.Ranks {
				idle = idle || r.InWorld && r.Engine.GetRunning() == 0
			}
		}
		if !idle {
			return
		}
	}
}

// refill: as many pods live as at the start.
func (s *stage) refill(ctx context.Context) error {
	for len(s.Living()) < startPods {
		if _, err := s.AddPod(ctx, 1); err != nil {
			return err
		}
	}
	return nil
}

// check that every request of a case ended, with the tokens of a quiet world.
func (s *stage) check(results []*load.Result) error {
	var wrong []string
	for i, r := range results {
		if r == nil {
			continue
		}
		if r.Err != nil {
			wrong = append(wrong, fmt.Sprintf("request %d is lost after %d tokens: %v", i, len(r.Tokens), r.Err))
		} else if i < len(s.reference) {
			if where := r.Differs(s.reference[i]); where != "" {
				wrong = append(wrong, where)
			}
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%s", strings.Join(wrong, "; "))
	}
	return nil
}

// passed tells which points each living pod passes in a transition in which nobody dies (but the one that a repair
// is of). Some are passed only if requests happen to be where they must move: it is played until it passed all those
// that are expected, a few times at most.
func (s *stage) passed(ctx context.Context, tr transition, expected []string) (map[string][]int, error) {
	all := map[string][]int{}
	for range tries {
		seen, err := s.passedOnce(ctx, tr)
		if err != nil {
			return nil, err
		}
		for point, places := range seen {
			for _, place := range places {
				if !slices.Contains(all[point], place) {
					all[point] = append(all[point], place)
				}
			}
		}
		if !slices.ContainsFunc(expected, func(point string) bool { return all[point] == nil }) {
			break
		}
	}
	return all, nil
}

func (s *stage) passedOnce(ctx context.Context, tr transition) (map[string][]int, error) {
	if err := s.lead(ctx, tr.from); err != nil {
		return nil, err
	}
	living := s.Living()
	for _, p := range living {
		if err := reset(s.FaultDir(p)); err != nil {
			return nil, err
		}
	}
	end, err := s.begin(ctx, tr, living[0])
	if err != nil {
		return nil, err
	}
	if tr.dies { // only the repair: a pod that comes passes the points of a join
		err = s.awaitRepaired(ctx, tr.to.ranks-1)
	} else {
		err = s.await(ctx, tr.to)
	}
	if err != nil {
		return nil, err
	}
	out := map[string][]int{}
	for place, p := range living {
		for _, point := range points(s.FaultDir(p), ".seen") {
			out[point] = append(out[point], place)
		}
	}
	if err := s.check(end()); err != nil {
		return nil, err
	}
	if err := s.refill(ctx); err != nil {
		return nil, err
	}
	return out, s.await(ctx, tr.to)
}

func touch(path string) error { return os.WriteFile(path, nil, 0o600) }

// play one cell. Where requests and pieces happen to be decides whether a pod passes a point: when it is not reached,
// and nobody died, it is played again with another pod that is known to pass it.
func (s *stage) play(ctx context.Context, f fault, places []int) (notReached bool, err error) {
	for try := range tries {
		if notReached, err = s.playOnce(ctx, f, places, try); err != nil || !notReached {
			return notReached, err
		}
	}
	return true, nil
}

func (s *stage) playOnce(ctx context.Context, f fault, places []int, try int) (notReached bool, err error) {
	if err := s.lead(ctx, f.transition.from); err != nil {
		return false, fmt.Errorf("before the case: %w", err)
	}
	living := s.Living()
	for _, p := range living {
		if err := reset(s.FaultDir(p)); err != nil {
			return false, err
		}
	}
	if f.transition.dies { // whoever dies first passes nothing
		places = slices.DeleteFunc(slices.Clone(places), func(p int) bool { return p == 0 })
	}
	at := living[places[(f.draw(len(places))+try)%len(places)]]
	dir := s.FaultDir(at)
	ids, err := s.members(ctx) // now: who stands at a point may not answer
	if err != nil {
		return false, err
	}
	if err := touch(filepath.Join(dir, f.point+".armed")); err != nil {
		return false, err
	}
	end, err := s.begin(ctx, f.transition, living[0])
	if err != nil {
		return false, err
	}
	deadline := time.Now().Add(reach)
	for !exists(filepath.Join(dir, f.point+".hit")) {
		if time.Now().After(deadline) {
			notReached = true
			break
		}
		time.Sleep(2 * time.Millisecond)
	}
	var heal func()
	if !notReached {
		if heal, err = s.strike(f, at, living, ids); err != nil {
			return false, err
		}
	}
	if err := os.Remove(filepath.Join(dir, f.point+".armed")); err != nil {
		return false, err
	}
	if heal != nil {
		time.Sleep(700 * time.Millisecond) // long enough to be seen, short enough to be wondered at
		heal()
	}
	if f.victim == "operator" && !notReached {
		time.Sleep(300 * time.Millisecond) // nobody is there
		if err := s.keep(f.transition.to); err != nil {
			return false, err
		}
	}
	if err := s.refill(ctx); err != nil {
		return false, err
	}
	if err := s.await(ctx, f.transition.to); err != nil {
		return false, err
	}
	return notReached, s.check(end())
}

// strike the victim while the process stands at the point.
func (s *stage) strike(f fault, at int, living []int, ids map[int]string) (heal func(), err error) {
	switch f.victim {
	case "engine":
		s.KillEngine(at, 0)
	case "agent":
		s.KillAgent(at)
	case "pod":
		s.KillPod(at)
	case "operator":
		s.keeper.Kill()
	case "link":
		others := slices.DeleteFunc(slices.Clone(living), func(p int) bool { return p == at || f.transition.dies && p == living[0] })
		return s.cut(at, others[f.draw(len(others))], ids)
	}
	return nil, nil
}

// cut the link between the ranks of two pods.
func (s *stage) cut(a, b int, ids map[int]string) (heal func(), err error) {
	for _, pair := range [][2]int{{a, b}, {b, a}} {
		if err := os.WriteFile(filepath.Join(s.FaultDir(pair[0]), "cut"), []byte(ids[pair[1]]+"\n"), 0o600); err != nil {
			return nil, err
		}
	}
	return func() {
		for _, p := range []int{a, b} {
			_ = os.Remove(filepath.Join(s.FaultDir(p), "cut")) // it is there: nobody else removes it
		}
	}, nil
}

// members by pod.
func (s *stage) members(ctx context.Context) (map[int]string, error) {
	all, err := s.Status(ctx)
	if err != nil {
		return nil, err
	}
	out := map[int]string{}
	for _, a := range all {
		for _, r := range a.Ranks {
			var pod int
			if _, err := fmt.Sscanf(r.Member.Id, "uid-p%d/", &pod); err != nil {
				return nil, fmt.Errorf("member %q: %w", r.Member.Id, err)
			}
			out[pod] = r.Member.Id
		}
	}
	return out, nil
}

// awaitRepaired until the survivors step again.
func (s *stage) awaitRepaired(ctx context.Context, ranks int) error {
	ctx, cancel := context.WithTimeout(ctx, settle)
	defer cancel()
	for {
		all, err := s.Status(ctx)
		stepping := 0
		for _, a := range all {
			for _, r := range a.Ranks {
				if len(a.Layout.GetMembers()) == ranks && r.InWorld && !r.Engine.Stopped && r.Transition.GetPhase() <= tangramv1.Phase_PHASE_IDLE {
					stepping++
				}
			}
		}
		if err == nil && stepping == ranks {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d survivors step again: %w", stepping, ranks, errors.Join(err, ctx.Err()))
		case <-time.After(look):
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
