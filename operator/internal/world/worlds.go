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

// Worlds by the UID of their MoEDeployment.
type Worlds struct {
	Log *slog.Logger
	// LookEvery: how often agents are asked what they hold, beside what they tell by themselves. 0: 1 s.
	LookEvery time.Duration
	// AnswerWithin so long an agent answers, or counts as one that does not. 0: 2 s.
	AnswerWithin time.Duration

	mu     sync.Mutex
	worlds map[types.UID]*World
}

// Open gives the world of a MoEDeployment, made at the first call. notify is called, from
// any goroutine, when there is something new.
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

// Find gives a world that was opened, or nil.
func (w *Worlds) Find(uid types.UID) *World {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.worlds[uid]
}

// Close ends a world's transition and connections. It may be called again after an error,
// and for a world that is not there.
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

// Dissolve a world beside the caller, who never waits: what runs ends, and all ranks are released, so that no pod waits
// until it has left a world that is over. It says whether that is done; notify tells when it is. It may be called again,
// and for a world that is not there.
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
	_ = world.halt(context.Background()) // whatever runs has limits of its own
	ctx, cancel := context.WithTimeout(context.Background(), releaseWithin)
	defer cancel()
	world.release(ctx, why)
	_ = w.Close(context.Background(), uid)
	world.notify()
}

// CloseAll at the end of the process: running flips end, or are aborted.
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
