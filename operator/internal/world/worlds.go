package world

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"tangram.dev/operator/internal/store"
)

// Worlds has the open worlds by the UID of their MoEDeployment.
type Worlds struct {
	Log *slog.Logger
	// LookEvery is the interval of status queries to agents, in addition to their streams. 0: 1 s.
	LookEvery time.Duration
	// AnswerWithin is the timeout of these queries. 0: 2 s.
	AnswerWithin time.Duration

	mu     sync.Mutex
	worlds map[types.UID]*World
}

// Open returns the world of a MoEDeployment; the first call creates it. notify is called, from any goroutine, when
// there is news.
func (w *Worlds) Open(uid types.UID, name string, dial Dialer, s store.Store, notify func()) *World {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.worlds == nil {
		w.worlds = map[types.UID]*World{}
	}
	if w.worlds[uid] == nil {
		w.worlds[uid] = open(name, dial, s, w.Log.With("world", name), cmp.Or(w.LookEvery, time.Second), cmp.Or(w.AnswerWithin, answerWithin), notify)
	}
	return w.worlds[uid]
}

// Find returns an open world, or nil.
func (w *Worlds) Find(uid types.UID) *World {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.worlds[uid]
}

// Close ends a world's transition and connections. It may be called again after an error, and for an unknown world.
func (w *Worlds) Close(ctx context.Context, uid types.UID) error {
	world := w.Find(uid)
	if world == nil {
		return nil
	}
	if err := world.close(ctx); err != nil {
		return fmt.Errorf("end the transition of world %s: %w", world.name, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.worlds, uid)
	return nil
}

// Dissolve ends a world in the background: it ends the current run and releases all ranks, so that no pod waits to
// leave an ended world. It returns true once that is done; notify is called then. It may be called again, and for an
// unknown world.
func (w *Worlds) Dissolve(uid types.UID, why string) (over bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	world := w.worlds[uid]
	if world == nil {
		return true
	}
	if !world.dissolving {
		world.dissolving = true
		go w.dissolve(uid, world, why)
	}
	return false
}

func (w *Worlds) dissolve(uid types.UID, world *World, why string) {
	_ = world.halt(context.Background()) // the run has its own limits
	ctx, cancel := context.WithTimeout(context.Background(), releaseWithin)
	defer cancel()
	world.release(ctx, why)
	_ = w.Close(context.Background(), uid)
	world.notify()
}

// CloseAll closes all worlds at the end of the process: running flips end, or are aborted.
func (w *Worlds) CloseAll(ctx context.Context) {
	w.mu.Lock()
	var uids []types.UID
	for uid := range w.worlds {
		uids = append(uids, uid)
	}
	w.mu.Unlock()
	var wait sync.WaitGroup
	for _, uid := range uids {
		wait.Go(func() {
			if err := w.Close(ctx, uid); err != nil {
				w.Log.Error("transition did not end in time, the next operator ends it", "error", err)
			}
		})
	}
	wait.Wait()
}
