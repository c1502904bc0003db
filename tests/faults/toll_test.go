package faults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
	"tangram.dev/tests/internal/worlds"
)

// toll is the cost of a cell.
type toll struct {
	WorldEnded   string  `json:"world_ended,omitempty"`
	Lost         int     `json:"lost"`             // members removed by fences
	Failed       int     `json:"failed"`           // failed actions of the keeper
	Retries      int     `json:"retries"`          // within its actions
	Checkpoint   uint64  `json:"checkpoint_bytes"` // read in successful transitions and repairs
	KV           uint64  `json:"kv_bytes"`         // moved in them
	Shared       uint64  `json:"shared_bytes"`     // of weights, read from the memory of other agents
	TCP          uint64  `json:"tcp_bytes"`        // of weights, sent by agents
	Replays      float64 `json:"replays"`
	Orphaned     float64 `json:"orphaned"` // of these without a token so far: their rank left before it accepted them
	Conflicts    float64 `json:"conflicting_tokens"`
	LostRequests float64 `json:"lost_requests"`
	Refused      int     `json:"refused"`         // replies of 429 and 503
	Corrupt      float64 `json:"corrupt_fetches"` // found by hash
	Pause        float64 `json:"pause_seconds"`   // longest wait of a request for a token after the strike
	Whole        float64 `json:"whole_seconds"`   // from the strike until the world matched its shape
	Held         float64 `json:"held_seconds"`    // time at the point caused by the test, not by the fault
}

// may is the allowed cost of a kind of fault. No fault may end the world, lose a request, deliver two different tokens
// for a position, or cause the rejection of a request.
type may struct {
	lost    int           // members that may be removed
	failed  int           // actions of the keeper that fail, and are repeated
	replays bool          // requests of a dead home are submitted again
	corrupt bool          // corrupt bytes must be found
	quiet   bool          // no process dies or is suspected: the transition completes, and KV moves if homes move
	pause   time.Duration // that a request may wait for a token
}

// Pauses: three times the promised median of the kind in docs/failure-modes.md.
const (
	pauseOfDeath = 3 * 1500 * time.Millisecond
	pauseOfHang  = 3 * 3 * time.Second
)

// A request may be in transit to a rank that leaves; the load sends some 70 per second, and a flip takes some 30 ms.
const orphanedAtMost = 3

// The driver calls an agent that must get its permit five times a second, until it takes it for dead (within twice
// Limits.Answer); the members keep serving meanwhile.
const knocksAtMost = 20

var mays = map[string]may{
	"":             {quiet: true, pause: pauseOfDeath},
	"engine":       {lost: 1, failed: 4, replays: true, pause: pauseOfDeath},
	"other-engine": {lost: 1, failed: 4, replays: true, pause: pauseOfDeath},
	"agent":        {lost: 1, failed: 4, replays: true, pause: pauseOfDeath},
	"other-agent":  {lost: 1, failed: 4, replays: true, pause: pauseOfDeath},
	"pod":          {lost: 1, failed: 4, replays: true, pause: pauseOfDeath},
	"other-pod":    {lost: 1, failed: 4, replays: true, pause: pauseOfDeath},
	"operator":     {failed: 1, pause: pauseOfDeath},
	"link":         {lost: 1, failed: 4, replays: true, pause: pauseOfDeath},
	"cut":          {lost: 1, failed: 4, replays: true, pause: pauseOfHang},
	"engine-pause": {quiet: true, pause: pauseOfDeath},
	"agent-pause":  {quiet: true, pause: pauseOfDeath},
	"engine-stop":  {lost: 1, failed: 4, replays: true, pause: pauseOfHang},
	"agent-stop":   {lost: 1, failed: 4, replays: true, pause: pauseOfHang},
	"source-stop":  {lost: 1, failed: 4, replays: true, pause: hangOfSource + pauseOfHang},
	"slow":         {quiet: true, pause: pauseOfDeath},
	"error":        {failed: 2, pause: pauseOfDeath},
	"corrupt":      {quiet: true, corrupt: true, pause: pauseOfDeath},
}

// allowed returns the allowed cost of a case: of its first fault, and of the second one.
func (f fault) allowed() may {
	a, b := mays[f.transition.first.kind], mays[f.kind]
	if f.kind == "error" && f.point == "flip.before_commit" {
		b = mays["agent"] // all votes were equal: the others flip, and a rank that cannot is removed
	}
	return may{lost: a.lost + b.lost, failed: a.failed + b.failed, replays: a.replays || b.replays, corrupt: a.corrupt || b.corrupt,
		quiet: a.quiet && b.quiet, pause: a.pause + b.pause}
}

// carriedNothing reports that no request had KV to migrate at the flip, although a successful case migrates some.
func (t toll) carriedNothing(f fault) bool {
	return t.KV == 0 && f.allowed().quiet && f.transition.movesKV
}

// bounds of the worlds of a matrix.
type bounds struct {
	share  uint64  // maximum bytes of experts on one rank
	slower float64 // factor of the waits, relative to the reference engine
}

// excess reports the costs beyond the allowed ones.
func (t toll) excess(f fault, b bounds) error {
	var errs []error
	note := func(is bool, format string, args ...any) {
		if is {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	a := f.allowed()
	note(t.WorldEnded != "", "the world was given up: %s", t.WorldEnded)
	note(t.LostRequests > 0, "the gateway lost %v requests", t.LostRequests)
	note(t.Conflicts > 0, "%v tokens differ from those delivered before", t.Conflicts)
	note(t.Refused > 0, "%d answers of 429 or 503", t.Refused)
	note(t.Lost > a.lost, "%d members were left out, at most %d may be", t.Lost, a.lost)
	note(t.Failed > a.failed, "the keeper tried %d things in vain, at most %d may be", t.Failed, a.failed)
	knocks := a.failed
	if a.lost > 0 {
		knocks += knocksAtMost
	}
	if f.kind == "operator" && ofARun(f.point) {
		knocks++ // the next driver ends the run, and then the flip in progress
	}
	note(t.Retries > knocks, "%d retries, at most %d may be", t.Retries, knocks)
	note(t.Replays > t.Orphaned && !a.replays, "%v requests were submitted again", t.Replays-t.Orphaned)
	note(t.Orphaned > orphanedAtMost && !a.replays, "%v requests reached a rank that did not take them, at most %d may", t.Orphaned, orphanedAtMost)
	note(t.Checkpoint > uint64(a.lost)*b.share, "%d bytes were read from the checkpoint, at most %d may be", t.Checkpoint, uint64(a.lost)*b.share)
	note(t.Corrupt > 0 && !a.corrupt, "%v pulls of corrupt bytes", t.Corrupt)
	// The fetch of an aborted attempt may end before it has read the byte.
	note(t.Corrupt == 0 && a.corrupt && f.transition.first.kind != "error", "no pull found corrupt bytes")
	note(f.oneNode && a.quiet && (t.TCP > 0 || t.Shared == 0), "agents of one node read %d bytes of each other's memory and sent %d", t.Shared, t.TCP)
	note(t.Pause > b.slower*a.pause.Seconds(), "a request waited %.1f s for a token, at most %.1f", t.Pause, b.slower*a.pause.Seconds())
	if len(errs) > 0 {
		errs = append(errs, fmt.Errorf("the test itself held whoever stood at %s for %.3f s", f.point, t.Held))
	}
	return errors.Join(errs...)
}

// Each figure alone can fail a cell.
func TestExcess_WhenOneFigureIsTooHigh(t *testing.T) {
	held := bounds{100, 1}
	quiet := fault{point: "stage.before", kind: "slow", transition: transitions[slices.IndexFunc(transitions, func(tr transition) bool { return tr.name == "resize-down" })]}
	death := fault{point: "stage.before", kind: "pod", transition: quiet.transition}
	good := toll{KV: 1}
	require.NoError(t, good.excess(quiet, held))
	require.NoError(t, toll{Lost: 1, Failed: 1, Replays: 3, Checkpoint: 100, Pause: 1}.excess(death, held))
	for name, c := range map[string]struct {
		t toll
		f fault
	}{
		"given up":            {toll{WorldEnded: "no member survives"}, death},
		"gateway lost":        {toll{LostRequests: 1}, death},
		"differ":              {toll{Conflicts: 1}, death},
		"429":                 {toll{Refused: 1}, death},
		"left out":            {toll{Lost: 2}, death},
		"in vain":             {toll{Failed: 5}, death},
		"retries":             {toll{Retries: 25}, death},
		"submitted again":     {toll{KV: 1, Replays: 1}, quiet},
		"did not take":        {toll{KV: 1, Replays: 4, Orphaned: 4}, quiet},
		"checkpoint":          {toll{Checkpoint: 101}, death},
		"from the checkpoint": {toll{KV: 1, Checkpoint: 1}, quiet},
		"no pull":             {toll{KV: 1}, fault{point: "stage.after_fetch", kind: "corrupt", transition: quiet.transition}},
		"2 pulls":             {toll{KV: 1, Corrupt: 2}, quiet},
		"waited":              {toll{Pause: 60}, death},
	} {
		require.ErrorContains(t, c.t.excess(c.f, held), name)
	}
	require.NoError(t, toll{Pause: 60}.excess(death, bounds{100, 20}), "worlds of slower engines")
	run := fault{point: "run.between_flips", kind: "operator", transition: transitionsOfARun[0]}
	require.NoError(t, toll{Failed: 1, Retries: 2}.excess(run, held))
	require.ErrorContains(t, toll{Failed: 1, Retries: 3}.excess(run, held), "retries")
	run.point = "stage.before"
	require.ErrorContains(t, toll{Failed: 1, Retries: 2}.excess(run, held), "retries")
	quiet.oneNode = true
	require.NoError(t, toll{KV: 1, Shared: 1}.excess(quiet, held))
	for _, t1 := range []toll{{KV: 1}, {KV: 1, Shared: 1, TCP: 1}} {
		require.ErrorContains(t, t1.excess(quiet, held), "of one node")
	}
	require.True(t, toll{}.carriedNothing(quiet))
	require.False(t, good.carriedNothing(quiet))
	require.False(t, toll{}.carriedNothing(death))
	for _, kind := range kinds() {
		require.Contains(t, slices.Collect(maps.Keys(mays)), kind)
	}
}

// meter has the counters before a case.
type meter struct {
	gateway map[string]float64
	corrupt map[string]float64 // by agent
	epoch   uint64
}

func (s *stage) read(ctx context.Context) (m meter, err error) {
	if m.gateway, err = worlds.Metrics(ctx, s.MetricsURL()); err != nil {
		return m, err
	}
	m.corrupt = map[string]float64{}
	for _, url := range s.AgentMetricsURLs() {
		agent, err := worlds.Metrics(ctx, url)
		if err != nil {
			return m, err
		}
		m.corrupt[url] = agent["tangram_agent_corrupt_fetches_total"]
	}
	all, err := s.Status(ctx)
	if err != nil {
		return m, err
	}
	m.epoch = newest(all)
	return m, nil
}

// count returns the cost of a case from the keepers' records, the gateway's and the agents' counters, and the clients.
func (s *stage) count(ctx context.Context, before meter, did []harness.Did, results []*load.Result, struck time.Time) (toll, error) {
	var t toll
	now, err := s.read(ctx)
	if err != nil {
		return t, err
	}
	for _, d := range did {
		if d.Error != "" {
			t.Failed++
		}
		if d.Record == nil {
			continue
		}
		t.Lost += len(d.Record.Lost)
		t.Retries += d.Record.Retries
		t.Checkpoint += d.Record.Bytes.Checkpoint
		t.KV += d.Record.Bytes.KV
		t.Shared += d.Record.Bytes.Shared
		t.TCP += d.Record.Bytes.TCP
		if d.Record.WorldEnded != "" {
			t.WorldEnded = d.Record.WorldEnded
		}
	}
	grown := func(name string) float64 {
		return now.gateway["tangram_gateway_"+name] - before.gateway["tangram_gateway_"+name]
	}
	t.Replays, t.Conflicts, t.LostRequests = grown("replays_total"), grown("conflicting_tokens_total"), grown("lost_requests_total")
	t.Orphaned = grown("orphaned_requests_total")
	for url, n := range now.corrupt {
		t.Corrupt += n - before.corrupt[url]
	}
	for _, r := range results {
		t.Refused += len(r.Refused)
		last := r.Sent
		for _, token := range r.Tokens {
			if token.At.After(struck) {
				t.Pause = max(t.Pause, token.At.Sub(last).Seconds())
			}
			last = token.At
		}
	}
	return t, nil
}
