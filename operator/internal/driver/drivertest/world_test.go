package drivertest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/driver"
	"tangram.dev/operator/internal/driver/drivertest"
	"tangram.dev/operator/internal/store"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

type bench struct {
	*drivertest.World
	driver *driver.Driver
	agents []*drivertest.Agent
	ranks  int
}

func setup(t *testing.T, pods, ranks int) *bench {
	t.Helper()
	w, err := drivertest.NewWorld("w")
	require.NoError(t, err)
	s, err := store.OpenFile(filepath.Join(t.TempDir(), "store.json"))
	require.NoError(t, err)
	limit := 500 * time.Millisecond
	b := &bench{World: w, ranks: ranks, driver: &driver.Driver{World: "w", Store: s, Log: slog.New(slog.DiscardHandler),
		Limits: driver.Limits{Engines: limit, Stage: limit, Flip: limit, Outcome: limit, Retire: limit}}}
	for i := range pods {
		a := w.Start(drivertest.Pod{Name: fmt.Sprintf("w-%d", i), UID: fmt.Sprintf("u%d", i), Node: "n", Address: fmt.Sprintf("10.0.0.%d:7100", i), Ranks: ranks})
		b.agents = append(b.agents, a)
		b.driver.Agents = append(b.driver.Agents, a)
	}
	return b
}

// lead takes the world to all ranks of these pods.
func (b *bench) lead(ctx context.Context, mode layout.Mode, pods ...int) error {
	want := driver.Wanted{Shape: layout.Shape{Mode: mode}, SpareBanks: 1}
	for _, p := range pods {
		for device := range b.ranks {
			want.Members = append(want.Members, b.agents[p].Member(device))
		}
	}
	_, err := b.driver.Apply(ctx, want)
	return err
}

func TestTourWithSeveralRanksPerPod(t *testing.T) {
	b := setup(t, 3, 2)
	for _, step := range []struct {
		mode layout.Mode
		pods []int
	}{{layout.Expert, []int{0, 1}}, {layout.Expert, []int{0, 1, 2}}, {layout.Tensor, []int{0, 1, 2}}, {layout.Expert, []int{0, 2}}} {
		require.NoError(t, b.lead(t.Context(), step.mode, step.pods...))
		require.True(t, b.Idle())
		require.Len(t, b.Layout().Members, 2*len(step.pods))
		require.True(t, layout.Is(b.Layout(), step.mode))
		in := map[int]bool{}
		for _, p := range step.pods {
			in[p] = true
		}
		for i, a := range b.agents {
			require.Equal(t, in[i], a.InWorld(), "pod %d", i)
		}
	}
}

func TestInjectedFailures(t *testing.T) {
	for name, c := range map[string]struct {
		order func(*bench)
		says  string // empty: no error
	}{
		"refused":    {func(b *bench) { b.agents[0].Refuse(&tangramv1.Refusal{Message: "5 bytes short"}) }, "5 bytes short"},
		"not staged": {func(b *bench) { b.agents[1].FailStage("checksum of expert 3") }, "checksum of expert 3"},
		"slow stage": {func(b *bench) { b.HoldStage(true) }, "stage: no progress for"},
		"shut gate":  {func(b *bench) { b.HoldGate(true) }, "aborted after its permit"},
		"lost reply": {func(b *bench) { b.agents[1].LoseReply() }, ""},
		"deaf":       {func(b *bench) { b.agents[1].Deaf(true) }, "connection refused"},
		"no engine":  {func(b *bench) { b.agents[0].Detach(true) }, "the engine of member u0/0/1 is detached"},
		"no memory":  {func(b *bench) { b.SetMemory(4096) }, "memory"},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 2, 1)
			require.NoError(t, b.lead(t.Context(), layout.Expert, 0, 1))
			c.order(b)
			err := b.lead(t.Context(), layout.Tensor, 0, 1)
			if c.says == "" {
				require.NoError(t, err)
				require.True(t, layout.Is(b.Layout(), layout.Tensor))
				return
			}
			require.ErrorContains(t, err, c.says)
			require.EqualValues(t, 1, b.Layout().Epoch, "the old layout serves on")
			b.HoldStage(false)
			b.HoldGate(false)
			b.SetMemory(1 << 30)
			b.agents[0].Refuse(nil)
			b.agents[0].Detach(false)
			b.agents[1].Deaf(false)
			if errors.Is(err, driver.ErrNeedsRepair) {
				_, err := b.driver.Repair(t.Context())
				require.NoError(t, err)
			}
			require.NoError(t, b.lead(t.Context(), layout.Tensor, 0, 1))
		})
	}
}

func TestStoppedAgentIsUnreachable(t *testing.T) {
	b := setup(t, 2, 1)
	require.NoError(t, b.lead(t.Context(), layout.Expert, 0, 1))
	b.Stop(b.agents[1].Address())
	require.Nil(t, b.Find(b.agents[1].Address()))
	_, err := b.agents[1].Status(t.Context(), "w")
	require.Error(t, err)
	require.Error(t, b.lead(t.Context(), layout.Expert, 0), "a world without a member cannot change")
}
