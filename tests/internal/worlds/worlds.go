// Package worlds has the common code of tests over worlds of real processes.
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

// Root is the repository, relative to a folder of tests/.
const Root = "../.."

// Hang is the limit of every wait for a required event: only a hang takes this long, however slow the machine is.
const Hang = 3 * time.Minute

// Timeouts of tests that do not test them. Closed connections reveal a killed process, and a slow one must not be taken
// for dead.
const (
	patient  = time.Minute      // of engines with an unresponsive peer
	reattach = 10 * time.Second // of the operator with an engine that may reattach: many repairs take this long
)

// Start starts a world with its files in build/walk; it ends with the test. Options.Dir is appended to the folder's
// name, for a test with several worlds.
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

// StartTiny starts a world of the tiny preset: 10 experts, 6 granules, 6 query heads. A mode switch of its three layers
// is one flip, unless o says otherwise.
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

// StartDeep starts a world of the deep preset: 24 layers of 32 experts, and two spare banks, so a mode switch takes 12
// flips.
func StartDeep(t *testing.T, o harness.Options) *harness.World {
	t.Helper()
	var err error
	o.Checkpoint, err = harness.Checkpoint(t.Context(), Root, "deep")
	require.NoError(t, err)
	return Start(t, o)
}

// Apply applies a shape with the driver.
func Apply(t *testing.T, w *harness.World, ranks int, mode string, shapes ...string) *harness.Record {
	t.Helper()
	record, err := w.Apply(t.Context(), ranks, mode, shapes, nil)
	require.NoError(t, err, w.Died())
	return record
}

// Client returns a client of the world's gateway.
func Client(w *harness.World) *load.Client {
	return &load.Client{URL: w.URL(), Model: w.Model(), HTTP: &http.Client{}}
}

// NewTrace makes a trace of the demo's requests.
func NewTrace(t *testing.T, seed uint64, span time.Duration) *load.Trace {
	t.Helper()
	trace, err := load.NewTrace(seed, span)
	require.NoError(t, err)
	return trace
}

// Answers returns the results of a trace's first requests.
func Answers(t *testing.T, w *harness.World) []*load.Result {
	t.Helper()
	results := Client(w).Repeat(t.Context(), NewTrace(t, 7, time.Minute), 4, 4)
	for _, r := range results {
		require.NoError(t, r.Err, w.Died())
		require.NotEmpty(t, r.Tokens)
	}
	return results
}

// RequireSame requires equal tokens and logit hashes, and no error.
func RequireSame(t *testing.T, got, want []*load.Result) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		require.NoError(t, got[i].Err)
		require.NoError(t, want[i].Err)
		require.Empty(t, got[i].Differs(want[i]))
	}
}

// Status returns the status of all agents.
func Status(t *testing.T, w *harness.World) []*tangramv1.StatusResponse {
	t.Helper()
	all, err := w.Status(t.Context())
	require.NoError(t, err, w.Died())
	return all
}

// RequireUnmoved requires the same active layout, the same pieces in the same places, the same mapped memory, and idle
// ranks.
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

// Audit requires that every pool adds up, and that each rank has exactly the memory of its layout.
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
