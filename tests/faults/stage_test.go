package faults

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
	"tangram.dev/tests/internal/worlds"
)

const look = 80 * time.Millisecond

// stage is a world for consecutive cases, as long as they succeed.
type stage struct {
	*harness.World
	*scene
	keeper *harness.Keeper
	did    []harness.Did // by earlier keepers
	bounds bounds
}

func newStage(t *testing.T, sc *scene) *stage {
	t.Helper()
	s := &stage{World: sc.start(t), scene: sc}
	t.Cleanup(s.endKeeper)
	require.NoError(t, s.lead(t.Context(), sc.rest))
	all, err := s.Status(t.Context())
	require.NoError(t, err)
	v, err := geometry.New(all[0].Geometry)
	require.NoError(t, err)
	s.bounds = bounds{uint64(sc.most) * v.ExpertBytes * uint64(len(v.Proto.MoeLayers)), sc.slower}
	return s
}

// keep starts a keeper with a shape.
func (s *stage) keep(to shape) error {
	s.endKeeper()
	var err error
	if to.placed != nil {
		s.keeper, err = s.KeepPlacement(to.ranks, to.placed.everyLayer(), nil)
	} else {
		s.keeper, err = s.Keep(to.ranks, to.mode, nil)
	}
	return err
}

// endKeeper kills the keeper; its actions still count.
func (s *stage) endKeeper() {
	if s.keeper == nil {
		return
	}
	s.keeper.Kill()
	s.did = append(s.did, s.keeper.Did()...)
	s.keeper = nil
}

// lead takes the world to a shape and waits until it is there, and at rest.
func (s *stage) lead(ctx context.Context, to shape) error {
	if err := s.keep(to); err != nil {
		return err
	}
	return s.await(ctx, to, 0, true)
}

// await waits until the world matches: ranks, mode, placement, all agents and engines attached, no operation in
// progress, every pool adds up, at an epoch above the given one. At rest, without requests: no page of KV is used, and
// each rank has the memory of its layout. An error has the last difference.
func (s *stage) await(ctx context.Context, to shape, above uint64, rest bool) error {
	ctx, cancel := context.WithTimeout(ctx, s.settle)
	defer cancel()
	var last error
	for {
		all, err := s.Status(ctx)
		if err == nil {
			if err = unlike(all, to); err == nil && newest(all) <= above {
				err = fmt.Errorf("it still is at epoch %d", above)
			}
			if err == nil && rest {
				err = restless(all)
			}
			if err == nil {
				return nil
			}
		}
		if ctx.Err() == nil { // otherwise the query was interrupted
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the world is not as wanted after %v: %w", s.settle, last)
		case <-time.After(look):
		}
	}
}

func newest(all []*tangramv1.StatusResponse) (epoch uint64) {
	for _, a := range all {
		epoch = max(epoch, a.Epoch)
	}
	return epoch
}

// restless reports memory that is used without requests; nil: none.
func restless(all []*tangramv1.StatusResponse) error {
	for _, a := range all {
		v, err := geometry.New(a.Geometry)
		if err != nil {
			return err
		}
		for _, r := range a.Ranks {
			if e := r.Engine; e.KvFreePages != e.KvPages || e.KvReservedTokens+e.Running+e.Waiting != 0 {
				return fmt.Errorf("%s at rest: %d of %d pages of KV are free, %d tokens reserved, %d requests running, %d waiting",
					r.Member.Id, e.KvFreePages, e.KvPages, e.KvReservedTokens, e.Running, e.Waiting)
			}
			if !r.InWorld {
				continue // unlike has checked that it holds nothing
			}
			if want := layout.SteadyBytes(a.Layout, v, r.Rank); r.MemoryMapped != want {
				return fmt.Errorf("%s at rest: %d bytes are mapped, its layout of epoch %d has %d", r.Member.Id, r.MemoryMapped, a.Epoch, want)
			}
		}
	}
	return nil
}

// unlike reports how a world differs from the shape; nil: it matches.
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
	if to.mode == "TensorParallel" {
		want = layout.Tensor
	}
	if members != to.ranks || len(l.GetMembers()) != to.ranks || !layout.Is(l, want) {
		return fmt.Errorf("%d ranks in the world, its layout of epoch %d has %d; wanted %d, %s", members, l.GetEpoch(), len(l.GetMembers()), to.ranks, to.mode)
	}
	return misplaced(l, to)
}

// misplaced reports how a layout differs from the placement.
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

// load starts the load. end stops it and returns the results.
func (s *stage) load(ctx context.Context) (end func() []*load.Result) {
	halt, played := make(chan struct{}), make(chan []*load.Result, 1)
	go func() { played <- worlds.Client(s.World).Play(ctx, s.source, 2*s.pods, halt) }()
	return sync.OnceValue(func() []*load.Result { close(halt); return <-played })
}

// awaitBusy waits until each rank of the active layout has served a request since the load began; the gateway
// distributes requests.
func (s *stage) awaitBusy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.settle)
	defer cancel()
	seen := map[string]bool{}
	for {
		all, err := s.Status(ctx)
		var idle []string
		for _, a := range all {
			for _, r := range a.Ranks {
				id := r.Member.Id
				seen[id] = seen[id] || r.Engine.GetRunning() > 0
				if r.InWorld && !seen[id] {
					idle = append(idle, id)
				}
			}
		}
		if err == nil && len(idle) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("under load for %v, these serve nothing: %v; %w", s.settle, idle, errors.Join(err, ctx.Err()))
		case <-time.After(look):
		}
	}
}

// refill adds pods up to the initial number.
func (s *stage) refill(ctx context.Context) error {
	for len(s.Living()) < s.pods {
		if _, err := s.AddPod(ctx, 1); err != nil {
			return err
		}
	}
	return nil
}
