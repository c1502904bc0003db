// Package walk takes worlds of real processes through layouts.
package walk

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
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

func client(w *harness.World) *load.Client {
	return &load.Client{URL: w.URL(), Model: w.Model(), HTTP: &http.Client{}}
}

// audit: every pool adds up, and each rank has exactly the memory that its layout says.
func audit(t *testing.T, w *harness.World, ranks int) {
	t.Helper()
	all, err := w.Status(t.Context())
	require.NoError(t, err)
	members := 0
	for _, s := range all {
		v, err := geometry.New(s.Geometry)
		require.NoError(t, err)
		for _, r := range s.Ranks {
			require.Equal(t, r.MemoryBytes, r.MemoryFree+r.MemoryMapped, "pool of %s", r.Member.Id)
			want := uint64(0)
			if r.InWorld {
				members++
				require.Len(t, s.Layout.Members, ranks)
				want = layout.SteadyBytes(s.Layout, v, r.Rank)
			}
			require.Equal(t, want, r.MemoryMapped, "mapped of %s", r.Member.Id)
		}
	}
	require.Equal(t, ranks, members)
}

type stop struct {
	ranks  int
	mode   string
	shapes []string
}

func TestTour(t *testing.T) {
	w := start(t, harness.Options{Pods: harness.Pods(8)})
	trace, err := load.NewTrace(3, 5*time.Minute)
	require.NoError(t, err)
	var tour []stop
	for p := 1; p <= 8; p++ {
		tour = append(tour, stop{p, "Expert", nil}, stop{p, "Tensor", nil})
	}
	tour = append(tour, stop{8, "Expert", []string{"0-2=4/2"}}, stop{6, "Tensor", []string{"1=1/1", "3-4=2/3"}},
		stop{6, "Expert", []string{"0-5=3/6"}}, stop{4, "Tensor", []string{"2-5=1/4"}}, stop{1, "Expert", nil})
	_, err = w.Apply(t.Context(), 1, "Expert", nil, nil)
	require.NoError(t, err)
	halt, played := make(chan struct{}), make(chan []*load.Result, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { played <- client(w).Play(ctx, trace, 4, halt) }()
	for _, s := range tour {
		t.Run(fmt.Sprint(s.ranks, s.mode, s.shapes), func(t *testing.T) {
			_, err := w.Apply(t.Context(), s.ranks, s.mode, s.shapes, nil)
			require.NoError(t, err, w.Died())
			audit(t, w, s.ranks)
		})
	}
	close(halt)
	walked := <-played
	still := client(w).Repeat(t.Context(), trace, len(walked), 4) // one rank, nothing moves
	require.NotEmpty(t, walked)
	for i := range walked {
		require.NoError(t, walked[i].Err)
		require.NoError(t, still[i].Err)
		require.Empty(t, walked[i].Differs(still[i]))
	}
}

// What cannot be is refused before anything moves, and the old layout serves on.
func TestBadShapes(t *testing.T) {
	w := start(t, harness.Options{Pods: harness.Pods(2), Memory: 160 << 20})
	_, err := w.Apply(t.Context(), 2, "Expert", nil, nil)
	require.NoError(t, err)
	trace, err := load.NewTrace(1, time.Minute)
	require.NoError(t, err)
	before, err := w.Status(t.Context())
	require.NoError(t, err)
	for _, c := range []struct {
		ranks int
		mode  string
		shape []string
		want  string
	}{
		{0, "Expert", nil, "needs at least 1"},
		{3, "Expert", nil, "the agents have 2"},
		{2, "Expert", []string{"0=0/1"}, "at least 1"},
		{2, "Expert", []string{"0=3/1"}, "do not divide 2 ranks"},
		{2, "Diagonal", nil, "neither Expert nor Tensor"},
	} {
		_, err := w.Apply(t.Context(), c.ranks, c.mode, c.shape, nil)
		require.ErrorContains(t, err, c.want)
	}
	after, err := w.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, before[0].Epoch, after[0].Epoch)
	require.Equal(t, before[0].LayoutHash, after[0].LayoutHash)
	result := client(w).Do(t.Context(), trace.At(0))
	require.NoError(t, result.Err)
	require.NotEmpty(t, result.Tokens)
}

// One rank cannot hold the demo model in 64 MiB: refused with the numbers.
func TestTooLittleMemory(t *testing.T) {
	w := start(t, harness.Options{Pods: []int{1}, Memory: 64 << 20})
	_, err := w.Apply(t.Context(), 1, "Expert", nil, nil)
	require.ErrorContains(t, err, fmt.Sprint(64<<20))
	all, err := w.Status(t.Context())
	require.NoError(t, err)
	require.Zero(t, all[0].Epoch)
	require.Zero(t, all[0].Ranks[0].MemoryMapped)
}
