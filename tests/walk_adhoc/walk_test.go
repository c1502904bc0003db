// Package walk takes worlds of real processes through layouts.
package walk

import (
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

const root = "../.."

func start(t *testing.T, o harness.Options) *harness.World {
	t.Helper()
	o.Root, o.Dir = root, filepath.Join(root, "build/walk", t.Name())
	w, err := harness.Start(t.Context(), o)
	require.NoError(t, err)
	t.Log("logs in", w.Dir())
	t.Cleanup(w.Stop)
	return w
}

// startTiny is a world of the tiny preset: 10 experts, 6 granules, 6 query heads.
func startTiny(t *testing.T, o harness.Options) *harness.World {
	t.Helper()
	var err error
	o.Checkpoint, err = harness.Checkpoint(t.Context(), root, "tiny")
	require.NoError(t, err)
	o.Granule, o.Memory, o.KV = 8, 64<<20, 8<<20
	return start(t, o)
}

func apply(t *testing.T, w *harness.World, ranks int, mode string, shapes ...string) *harness.Record {
	t.Helper()
	record, err := w.Apply(t.Context(), ranks, mode, shapes, nil)
	require.NoError(t, err, w.Died())
	return record
}

func client(w *harness.World) *load.Client {
	return &load.Client{URL: w.URL(), Model: w.Model(), HTTP: &http.Client{}}
}

func newTrace(t *testing.T, seed uint64, span time.Duration) *load.Trace {
	t.Helper()
	trace, err := load.NewTrace(seed, span)
	require.NoError(t, err)
	return trace
}

// answers of the first requests of a trace.
func answers(t *testing.T, w *harness.World) []*load.Result {
	t.Helper()
	results := client(w).Repeat(t.Context(), newTrace(t, 7, time.Minute), 4, 4)
	for _, r := range results {
		require.NoError(t, r.Err, w.Died())
		require.NotEmpty(t, r.Tokens)
	}
	return results
}

func requireSame(t *testing.T, got, want []*load.Result) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		require.NoError(t, got[i].Err)
		require.NoError(t, want[i].Err)
		require.Empty(t, got[i].Differs(want[i]))
	}
}

func status(t *testing.T, w *harness.World) []*tangramv1.StatusResponse {
	t.Helper()
	all, err := w.Status(t.Context())
	require.NoError(t, err, w.Died())
	return all
}

// requireUnmoved: the same layout in force, the same pieces in the same places, the same
// memory mapped, and no rank in the middle of anything.
func requireUnmoved(t *testing.T, got, want []*tangramv1.StatusResponse) {
	t.Helper()
	require.Len(t, got, len(want))
	for i, was := range want {
		is := got[i]
		require.Equal(t, was.Epoch, is.Epoch)
		require.Equal(t, was.LayoutHash, is.LayoutHash)
		require.True(t, proto.Equal(was.Layout, is.Layout))
		for j, r := range was.Ranks {
			now := is.Ranks[j]
			require.Equal(t, r.MemoryMapped, now.MemoryMapped, "mapped of %s", r.Member.Id)
			require.Equal(t, r.MemoryFree, now.MemoryFree, "free of %s", r.Member.Id)
			require.True(t, proto.Equal(r.Inventory, now.Inventory), "inventory of %s", r.Member.Id)
			require.LessOrEqual(t, now.Transition.GetPhase(), tangramv1.Phase_PHASE_IDLE, "phase of %s", r.Member.Id)
		}
	}
}

// audit: every pool adds up, and each rank has exactly the memory that its layout says.
func audit(t *testing.T, w *harness.World, ranks int) {
	t.Helper()
	members := 0
	var hash []byte
	for _, s := range status(t, w) {
		v, err := geometry.New(s.Geometry)
		require.NoError(t, err)
		for _, r := range s.Ranks {
			require.Equal(t, r.MemoryBytes, r.MemoryFree+r.MemoryMapped, "pool of %s", r.Member.Id)
			want := uint64(0)
			if r.InWorld {
				members++
				require.Len(t, s.Layout.Members, ranks)
				require.NoError(t, layout.Validate(s.Layout, v))
				want = layout.SteadyBytes(s.Layout, v, r.Rank)
				if hash == nil {
					hash = s.LayoutHash
				}
				require.Equal(t, hash, s.LayoutHash, "layout of %s", r.Member.Id)
			}
			require.Equal(t, want, r.MemoryMapped, "mapped of %s", r.Member.Id)
		}
	}
	require.Equal(t, ranks, members)
}
