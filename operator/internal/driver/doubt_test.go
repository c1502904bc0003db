package driver

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/driver/drivertest"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// waits blocks in Prepare while a repair's engine is unresponsive, because engines wait for connections to all others.
type waits struct {
	*drivertest.Agent
	hung *bool
}

func (a waits) Prepare(ctx context.Context, q *tangramv1.PrepareRequest) error {
	if *a.hung && slices.ContainsFunc(q.Peers, func(p *tangramv1.PeerAddress) bool { return p.Member == "u3/0/1" }) {
		<-ctx.Done()
		return ctx.Err()
	}
	return a.Agent.Prepare(ctx, q)
}

// During a repair the engine of another stopped rank becomes unresponsive. Its agent still reports it as stopped, and
// only the others report no connection to it. The repair does not wait for it.
func TestRepair_WhenEngineUnresponsiveDuringRepair(t *testing.T) {
	for _, at := range []string{"prepare", "stage"} {
		t.Run(at, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, w := setup(t, 5)
				_, err := d.Apply(t.Context(), expert(5))
				require.NoError(t, err)
				d.Limits.Stage, d.Limits.Stop = time.Minute, time.Minute
				hung := false
				for i, a := range w.agents {
					d.Agents[i] = waits{a, &hung}
				}
				begun := false
				d.Hooks.Progress = func(e Event) {
					if e.Kind == "repair" && e.Phase == at && !begun {
						begun = true
						hung = at == "prepare"
						w.agents[3].Hang(0, true)
					}
				}
				if at == "stage" {
					w.HoldStage(true)
					time.AfterFunc(2*time.Second, func() { w.HoldStage(false) })
				}
				w.kill(4)
				began := time.Now()
				record, err := d.Repair(t.Context())
				require.NoError(t, err)
				require.Less(t, time.Since(began), 5*time.Second)
				require.True(t, begun)
				w.members(t, 0, 1, 2)
				require.Equal(t, 1, record.Retries)
				require.Len(t, record.Lost, 2)
				require.Equal(t, Lost{Member: "u3/0/1", Why: "its engine cannot reach all survivors"}, record.Lost[0])
				w.agents[3].Hang(0, false)
				require.Equal(t, "u3/0/2", w.agents[3].Member(0), "it was released")
			})
		})
	}
}

// A reattached engine becomes unresponsive when it is prepared. Its peers have its address by then.
func TestRepair_WhenReattachedEngineUnresponsive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 4)
		_, err := d.Apply(t.Context(), expert(4))
		require.NoError(t, err)
		d.Limits.Stage, d.Limits.Stop = time.Minute, time.Minute
		w.agents[3].Detach(true)
		w.agents[3].Detach(false)
		hung := false
		for i, a := range w.agents {
			d.Agents[i] = waits{a, &hung}
		}
		d.Hooks.Progress = func(e Event) {
			if e.Kind == "repair" && e.Phase == "prepare" && !hung {
				hung = true
				w.agents[3].Hang(0, true)
			}
		}
		began := time.Now()
		record, err := d.Repair(t.Context())
		require.NoError(t, err)
		require.Less(t, time.Since(began), 2*freshSettle)
		require.Equal(t, []Lost{{Member: "u3/0/1", Why: "its engine cannot reach all survivors"}}, record.Lost)
		w.members(t, 0, 1, 2)
	})
}

// A broken connection between two stopped ranks that is restored does not restart the repair.
func TestRepair_WhenConnectionIsRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 4)
		_, err := d.Apply(t.Context(), expert(4))
		require.NoError(t, err)
		w.HoldStage(true)
		cut := func(is bool) { w.Cut(w.agents[0].Member(0), w.agents[1].Member(0), is) }
		d.Hooks.Progress = func(e Event) {
			if e.Kind == "repair" && e.Phase == "prepare" {
				for i := range 3 {
					time.AfterFunc(time.Duration(i)*hangSettle, func() { cut(true) })
					time.AfterFunc(time.Duration(i)*hangSettle+hangSettle/2, func() { cut(false) })
				}
				time.AfterFunc(3*hangSettle, func() { w.HoldStage(false) })
			}
		}
		w.kill(3)
		record, err := d.Repair(t.Context())
		require.NoError(t, err)
		require.Zero(t, record.Retries)
		w.members(t, 0, 1, 2)
	})
}
