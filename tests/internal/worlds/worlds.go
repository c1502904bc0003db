// Package worlds is what tests over worlds of real processes share.
package worlds

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

// Root of the repository, as the tests of a folder of tests/ see it.
const Root = "../.."

// Hang is the limit of every wait for something that must happen: only a hang takes this long, however slow the machine is.
const Hang = 3 * time.Minute

// Limits where no test is about them. A killed process is noticed by its closed connections, and a slow one must not be taken for dead.
const (
	patient  = time.Minute      // of engines with a silent peer
	reattach = 10 * time.Second // of the operator with an engine that may come back: many repairs take as long
)

// Start a world with its files in build/walk; it ends with the test. Options.Dir is what the folder's name ends with,
// for a test with several.
func Start(t *testing.T, o harness.Options) *harness.World {
	t.Helper()
	o.Root, o.Dir = Root, filepath.Join(Root, "build/walk", t.Name()+o.Dir)
	if o.Patience == 0 && !o.Hangs {
		o.Patience = patient
	}
	if o.Reattach == 0 && !o.Hangs {
		o.Reattach = reattach
	}
	w, err := harness.Start(t.Context(), o)
	require.NoError(t, err)
	t.Log("logs in", w.Dir())
	t.Cleanup(w.Stop)
	return w
}

// StartTiny is a world of the tiny preset: 10 experts, 6 granules, 6 query heads. A mode switch of its three layers is one flip, unless o says otherwise.
func StartTiny(t *testing.T, o harness.Options) *harness.World {
	t.Helper()
	var err error
	o.Checkpoint, err = harness.Checkpoint(t.Context(), Root, "tiny")
	require.NoError(t, err)
	o.Granule, o.KV = 8, 8<<20
	if o.SpareBanks == 0 {
		o.SpareBanks = 3
	}
	if o.Memory == 0 {
		o.Memory = 64 << 20
	}
	return Start(t, o)
}

// StartDeep is a world of the deep preset: 24 layers of 32 experts, and two spare banks, so that a mode switch takes 12 flips.
func StartDeep(t *testing.T, o harness.Options) *harness.World {
	t.Helper()
	var err error
	o.Checkpoint, err = harness.Checkpoint(t.Context(), Root, "deep")
	require.NoError(t, err)
	return Start(t, o)
}

// Apply a shape by the driver.
func Apply(t *testing.T, w *harness.World, ranks int, mode string, shapes ...string) *harness.Record {
	t.Helper()
	record, err := w.Apply(t.Context(), ranks, mode, shapes, nil)
	require.NoError(t, err, w.Died())
	return record
}

// Client of the world's gateway.
func Client(w *harness.World) *load.Client {
	return &load.Client{URL: w.URL(), Model: w.Model(), HTTP: &http.Client{}}
}

// NewTrace of the demo's requests.
func NewTrace(t *testing.T, seed uint64, span time.Duration) *load.Trace {
	t.Helper()
	trace, err := load.NewTrace(seed, span)
	require.NoError(t, err)
	return trace
}

// Answers of the first requests of a trace.
func Answers(t *testing.T, w *harness.World) []*load.Result {
	t.Helper()
	results := Client(w).Repeat(t.Context(), NewTrace(t, 7, time.Minute), 4, 4)
	for _, r := range results {
		require.NoError(t, r.Err, w.Died())
		require.NotEmpty(t, r.Tokens)
	}
	return results
}

// RequireSame tokens and logit hashes, and no error.
func RequireSame(t *testing.T, got, want []*load.Result) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		require.NoError(t, got[i].Err)
		require.NoError(t, want[i].Err)
		require.Empty(t, got[i].Differs(want[i]))
	}
}

// Status of all agents.
func Status(t *testing.T, w *harness.World) []*tangramv1.StatusResponse {
	t.Helper()
	all, err := w.Status(t.Context())
	require.NoError(t, err, w.Died())
	return all
}

// RequireUnmoved demands the same layout in force, the same pieces in the same places, the same
// memory mapped, and no rank in the middle of anything.
func RequireUnmoved(t *testing.T, got, want []*tangramv1.StatusResponse) {
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

// Audit demands that every pool adds up, and each rank has exactly the memory that its layout says.
func Audit(t *testing.T, w *harness.World, ranks int) {
	t.Helper()
	members := 0
	var hash []byte
	for _, s := range Status(t, w) {
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
