package walk

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
	"tangram.dev/tests/internal/worlds"
)

type stop struct {
	ranks  int
	mode   string
	shapes []string
}

// tour is a walk of a world that starts with one rank.
type tour struct {
	name  string
	still int // stops that move nothing, because one rank is whole in every mode
	stops []stop
}

// short is the tour of `make test`: one rank to eight and back, both modes, a mixed layout.
var short = tour{name: "short", stops: []stop{
	{2, "ExpertParallel", nil},
	{2, "TensorParallel", nil},
	{4, "TensorParallel", nil},
	{4, "ExpertParallel", []string{"0-2=2/2"}},
	{8, "ExpertParallel", nil},
	{5, "TensorParallel", nil},
	{3, "ExpertParallel", nil},
	{1, "ExpertParallel", nil},
}}

// tours: every number of ranks in both modes, ascending; and mixed layouts, then descending in strides. The demo model
// has 10 granules, 12 query heads, 4 KV heads and 64 experts, which most numbers of ranks do not divide.
func tours() []tour {
	up := tour{name: "up", still: 2}
	for p := 1; p <= 8; p++ {
		up.stops = append(up.stops, stop{p, "ExpertParallel", nil}, stop{p, "TensorParallel", nil})
	}
	return []tour{up, {"down", 0, []stop{
		{8, "ExpertParallel", []string{"0-2=4/2"}},          // groups and whole experts
		{8, "TensorParallel", []string{"0=1/8", "5=8/1"}},   // experts and heads sharded differently in one layer
		{8, "ExpertParallel", []string{"0-5=2/4", "3=4/2"}}, // groups everywhere
		{6, "TensorParallel", []string{"1=1/1", "3-4=2/3"}},
		{6, "ExpertParallel", []string{"0-5=3/6"}},
		{7, "TensorParallel", nil},
		{5, "TensorParallel", nil},
		{4, "TensorParallel", []string{"2-5=1/4"}},
		{2, "TensorParallel", nil},
		{3, "ExpertParallel", nil},
		{1, "ExpertParallel", nil},
	}}}
}

// Every request in flight and every rank takes part in each transition: earlier requests get tokens during it and after
// it, and then each rank of the new layout prefills tokens and computes.
func TestTour(t *testing.T) {
	all := tours()
	if worlds.IsCI() {
		all = []tour{short}
	}
	for _, tour := range all {
		t.Run(tour.name, tour.walk)
	}
}

func (tour tour) walk(t *testing.T) {
	// A minimum step makes requests last longer than a transition, also if the transition has to wait for the machine.
	w := start(t, harness.Options{Pods: harness.Pods(8), MaxTokens: flightTokens, LeastStep: leastStep})
	apply(t, w, 1, "ExpertParallel")
	trace := newTrace(t, 3, 20*time.Second) // more than the world can serve, so four requests run at all times
	halt, played := make(chan struct{}), make(chan []*load.Result, 1)
	go func() { played <- client(w).Play(t.Context(), trace, 4, halt) }()
	moved, longest := 0, 0
	var flown []*load.Result
	from := work(t, w)
	others := newTrace(t, 4, time.Second)
	ranks := 1
	for _, s := range tour.stops {
		t.Run(fmt.Sprint(s.ranks, s.mode, s.shapes), func(t *testing.T) {
			flying := fly(t, w, others, len(flown), ranks)
			requireAllWork(t, w, from)
			var before []int64
			for _, f := range flying {
				before = append(before, f.counters.Now().Tokens)
			}
			record := apply(t, w, s.ranks, s.mode, s.shapes...)
			for i, f := range flying {
				got := f.counters.Now().Tokens - before[i]
				if record.PlannedFlips > 0 && !worlds.IsCI() { // depends on the scheduling of the client
					require.Positive(t, got, "a request stood still during a transition that took %.2f s", record.TotalSeconds)
				}
			}
			if record.PlannedFlips > 0 {
				moved++
			}
			for _, f := range flying {
				flown = append(flown, f.land(t))
				longest = max(longest, len(flown[len(flown)-1].Tokens))
			}
			ranks, from = s.ranks, work(t, w)
			audit(t, w, s.ranks)
		})
	}
	flying := fly(t, w, others, len(flown), ranks)
	requireAllWork(t, w, from)
	for _, f := range flying {
		flown = append(flown, f.land(t))
	}
	close(halt)
	walked := <-played
	require.NotEmpty(t, walked)
	require.GreaterOrEqual(t, moved, len(tour.stops)-tour.still, "some stops moved nothing")
	// The same requests without transitions.
	w.Stop()
	one := start(t, harness.Options{Pods: harness.Pods(1), MaxTokens: flightTokens})
	apply(t, one, 1, "ExpertParallel")
	requireSame(t, walked, client(one).Repeat(t.Context(), trace, len(walked), 8))
	requireSame(t, flown, client(one).Again(t.Context(), flown, 16))
	t.Logf("%d requests over %d transitions, and %d that were in flight at their beginning, with at most %d tokens", len(walked), moved, len(flown), longest)
}
