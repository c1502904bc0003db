package walk

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
)

type stop struct {
	ranks  int
	mode   string
	shapes []string
}

// tour: every width in both modes, up; then mixed layouts; then down in strides. The demo
// model has 10 granules, 12 query heads, 4 KV heads and 64 experts, so that most widths
// divide nothing.
func tour() []stop {
	var out []stop
	for p := 1; p <= 8; p++ {
		out = append(out, stop{p, "Expert", nil}, stop{p, "Tensor", nil})
	}
	return append(out,
		stop{8, "Expert", []string{"0-2=4/2"}},          // groups beside whole experts
		stop{8, "Tensor", []string{"0=1/8", "5=8/1"}},   // experts and heads cut differently in one layer
		stop{8, "Expert", []string{"0-5=2/4", "3=4/2"}}, // groups everywhere
		stop{6, "Tensor", []string{"1=1/1", "3-4=2/3"}},
		stop{6, "Expert", []string{"0-5=3/6"}},
		stop{7, "Tensor", nil},
		stop{5, "Tensor", nil},
		stop{4, "Tensor", []string{"2-5=1/4"}},
		stop{2, "Tensor", nil},
		stop{3, "Expert", nil},
		stop{1, "Expert", nil})
}

// interval in which a transition ran.
type interval struct{ from, to time.Time }

func TestTour(t *testing.T) {
	w := start(t, harness.Options{Pods: harness.Pods(8)})
	apply(t, w, 1, "Expert")
	trace := newTrace(t, 3, 20*time.Second) // more than the world can do: four requests run at all times
	halt, played := make(chan struct{}), make(chan []*load.Result, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	go func() { played <- client(w).Play(ctx, trace, 4, halt) }()
	var moved []interval
	for _, s := range tour() {
		t.Run(fmt.Sprint(s.ranks, s.mode, s.shapes), func(t *testing.T) {
			began := time.Now()
			record := apply(t, w, s.ranks, s.mode, s.shapes...)
			if record.PlannedFlips > 0 {
				moved = append(moved, interval{began, time.Now()})
			}
			audit(t, w, s.ranks)
		})
	}
	close(halt)
	walked := <-played
	require.NotEmpty(t, walked)
	require.GreaterOrEqual(t, len(moved), len(tour())-2, "some stops moved nothing")
	for _, m := range moved {
		require.True(t, tokensWithin(walked, m), "no token came during a transition that took %v", m.to.Sub(m.from))
	}
	// The same requests where nothing ever moves.
	w.Stop()
	one := start(t, harness.Options{Pods: harness.Pods(1)})
	apply(t, one, 1, "Expert")
	requireSame(t, walked, client(one).Repeat(t.Context(), trace, len(walked), 8))
	t.Logf("%d requests over %d transitions", len(walked), len(moved))
}

func tokensWithin(results []*load.Result, i interval) bool {
	for _, r := range results {
		for _, token := range r.Tokens {
			if token.At.After(i.from) && token.At.Before(i.to) {
				return true
			}
		}
	}
	return false
}
