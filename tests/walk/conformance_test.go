package walk

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
	tangramv1 "tangram.dev/proto/tangram/v1"
	"tangram.dev/tests/internal/worlds"
)

// candidate is an engine to be tested by the suite: how to start a world of it, and which tokens are right.
type candidate struct {
	name string
	// start starts a world of it; the suite sets the pods and the options of its faults.
	start func(*testing.T, harness.Options) *harness.World
	// source of short prompts.
	source load.Source
	// stepTokens is the maximum of one rank's step (--max-batch-tokens).
	stepTokens int
	// layers of its checkpoint.
	layers int
	// right requires that the tokens of ended requests are right.
	right func(*testing.T, []*load.Result)
	// aheadOfLeavers: KV of leaving ranks is copied ahead of the flip.
	aheadOfLeavers bool
}

// conforming is a candidate in a world.
type conforming struct {
	candidate
	*harness.World
	sent int // requests so far
}

const (
	conformingTokens = 1024 // prompt and answer: outlasts a transition by far, and six fit on one rank
	conformingRanks  = 3
	inFlight         = 6
)

// part is a part of the suite. Each starts with its own requests and its own layout, so that it can run alone.
type part struct {
	name string
	play func(*testing.T, *conforming)
	// deadly: engines die in it.
	deadly bool
}

// Parts with deaths come last, because they shrink the world.
var suite = []part{
	{"growth", grows, false},
	{"shrink", shrinks, false},
	{"experts are cut over all ranks and back", cuts, false},
	{"an engine leaves and comes back", leaves, false},
	{"a flip is called off after requests were adopted", callsOff, false},
	{"a request is cancelled in flight", cancels, false},
	{"a prompt is longer than a step", takesLongPrompts, false},
	{"requests arrive during a flip", takesRequestsInAFlip, false},
	{"a rank is idle", idles, false},
	{"an engine is killed while KV goes ahead of a flip", losesAnEngineAhead, true},
	{"an engine is killed", losesAnEngine, true},
	{"a pod is killed", losesAPod, true},
}

// conform runs the suite in one world. Tokens are always compared; wrong KV of a flip changes the next tokens.
func conform(t *testing.T, of candidate) {
	t.Helper()
	c := &conforming{candidate: of}
	c.World = of.start(t, harness.Options{Pods: []int{1, 1, 1}, MaxTokens: conformingTokens, LeastStep: leastStep, FaultDirs: true, Restart: true})
	for _, p := range worlds.Cases(3, suite) {
		t.Run(p.name, func(t *testing.T) {
			before := c.members(t)
			p.play(t, c)
			if !p.deadly {
				require.Equal(t, before, c.members(t), "an engine ended, and another came")
			}
		})
	}
}

// members lists the attached engines: a restarted one has another name.
func (c *conforming) members(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, s := range status(t, c.World) {
		for _, r := range s.Ranks {
			out = append(out, r.Member.Id)
		}
	}
	return out
}

// fly sends the next requests of the source.
func (c *conforming) fly(t *testing.T, n int) []*flight {
	t.Helper()
	flights := flyOf(t, c.World, c.source, c.sent, n, conformingTokens)
	c.sent += n
	return flights
}

// landed requires that the requests have the right tokens, and that their KV is freed.
func (c *conforming) landed(t *testing.T, flights []*flight) {
	t.Helper()
	var results []*load.Result
	for _, f := range flights {
		results = append(results, f.land(t))
	}
	c.right(t, results)
	c.quiet(t)
}

// quiet requires that no rank holds KV without requests, for example KV that a flip migrated to a request that does not
// run.
func (c *conforming) quiet(t *testing.T) {
	t.Helper()
	var held string
	require.Eventually(t, func() bool {
		all, err := c.Status(t.Context())
		if err != nil {
			held = err.Error()
			return false
		}
		held = ""
		for _, s := range all {
			for _, r := range s.Ranks {
				if e := r.Engine; e.GetKvFreePages() != e.GetKvPages() || e.GetRunning()+e.GetWaiting() > 0 {
					held += fmt.Sprintf("%s: %d of %d KV pages free, %d requests run and %d wait; ", r.Member.Id, e.GetKvFreePages(), e.GetKvPages(), e.GetRunning(), e.GetWaiting())
				}
			}
		}
		return held == ""
	}, worlds.Hang, 100*time.Millisecond, "all requests have ended, and KV is held: %s", &held)
}

// carried returns the bytes of KV that flips migrated so far, from the kit's lines in the engines' logs, and the number
// of failures.
func (c *conforming) carried(t *testing.T) (bytes, failed int) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(c.Dir(), "engine-p*.log"))
	assert.NoError(t, err)
	assert.NotEmpty(t, logs)
	for _, path := range logs {
		log, err := os.ReadFile(path)
		assert.NoError(t, err)
		for line := range strings.Lines(string(log)) {
			failed += strings.Count(line, "KV migration failed")
			if _, flip, ok := strings.Cut(line, "] flip committed "); ok {
				var epoch, n int
				if k, _ := fmt.Sscanf(flip, "epoch=%d kv_bytes=%d", &epoch, &n); k == 2 {
					bytes += n
				}
			}
		}
	}
	return bytes, failed
}

// ahead returns the part of these bytes that was copied before the flips, from the engines' logs.
func (c *conforming) ahead(t *testing.T) (bytes int) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(c.Dir(), "engine-p*.log"))
	require.NoError(t, err)
	for _, path := range logs {
		log, err := os.ReadFile(path)
		require.NoError(t, err)
		for line := range strings.Lines(string(log)) {
			if _, told, ok := strings.Cut(line, "] KV migrated "); ok {
				var n int
				if k, _ := fmt.Sscanf(told, "bytes_ahead=%d", &n); k == 1 {
					bytes += n
				}
			}
		}
	}
	return bytes
}

// through takes the world from its first stop to the others, with new requests in flight each time.
func (c *conforming) through(t *testing.T, from stop, stops ...stop) {
	t.Helper()
	apply(t, c.World, from.ranks, from.mode, from.shapes...)
	for _, s := range stops {
		flights := c.fly(t, inFlight)
		record := apply(t, c.World, s.ranks, s.mode, s.shapes...)
		require.Positive(t, record.PlannedFlips)
		c.landed(t, flights)
		audit(t, c.World, s.ranks)
	}
}

// even has whole experts and whole requests, distributed evenly.
func even(ranks int) stop { return stop{ranks, "ExpertParallel", nil} }

func grows(t *testing.T, c *conforming) {
	c.through(t, even(1), even(2), even(3))
}

func shrinks(t *testing.T, c *conforming) {
	before, _ := c.carried(t)
	early := c.ahead(t)
	c.through(t, even(3), even(2), even(1))
	after, _ := c.carried(t)
	require.Greater(t, after, before, "no KV was brought from the ranks that left")
	t.Logf("of %d bytes of KV, %d were there ahead of the flips", after-before, c.ahead(t)-early)
	if c.aheadOfLeavers {
		require.Greater(t, c.ahead(t), early, "none of it went ahead of the flips")
	}
}

// In between, each expert is split over all ranks, and each request's attention is on one.
func cuts(t *testing.T, c *conforming) {
	cut := stop{conformingRanks, "ExpertParallel", []string{fmt.Sprintf("0-%d=%d/1", c.layers-1, conformingRanks)}}
	c.through(t, even(conformingRanks), cut, even(conformingRanks))
}

// A rank that left has nothing, and computes again after it returns.
func leaves(t *testing.T, c *conforming) {
	c.through(t, even(3), even(1), even(3))
	flights := c.fly(t, inFlight)
	c.everyRankHas(t, conformingRanks)
	c.landed(t, flights)
}

// everyRankHas waits until each of the ranks has running requests.
func (c *conforming) everyRankHas(t *testing.T, ranks int) {
	t.Helper()
	require.Eventually(t, func() bool { return len(c.busy(t)) == ranks }, flightLimit, 50*time.Millisecond, "not every rank has a request")
}

// busy counts the running requests of the active layout's ranks, by member.
func (c *conforming) busy(t *testing.T) map[string]uint64 {
	t.Helper()
	out := map[string]uint64{}
	for _, s := range status(t, c.World) {
		for _, r := range s.Ranks {
			if n := r.Engine.GetRunning(); r.InWorld && n > 0 {
				out[r.Member.Id] = n
			}
		}
	}
	return out
}

// The agents' fetches of KV fail at every try after requests were assigned: the flip is aborted, all ranks continue
// where they are, and the next flip assigns the requests again.
func callsOff(t *testing.T, c *conforming) {
	apply(t, c.World, conformingRanks, "ExpertParallel")
	_, before := c.carried(t)
	flights := c.fly(t, inFlight)
	c.everyRankHas(t, conformingRanks) // so that the leaving rank has a request to migrate
	heal := c.failPulls(t)
	applied := make(chan error, 1)
	go func() {
		_, err := c.Apply(t.Context(), conformingRanks-1, "ExpertParallel", nil, nil)
		applied <- err
	}()
	require.Eventually(t, func() bool { _, now := c.carried(t); return now > before }, worlds.Hang, 10*time.Millisecond, "no flip was called off")
	heal()
	require.NoError(t, <-applied, "the flip that was called off is tried again")
	c.landed(t, flights)
	audit(t, c.World, conformingRanks-1)
}

// failPulls makes every fetch of KV fail, on all pods, until the returned function is called.
func (c *conforming) failPulls(t *testing.T) (heal func()) {
	t.Helper()
	var files []string
	for pod := range conformingRanks {
		files = append(files, filepath.Join(c.FaultDir(pod), "kv.before_pull.always"))
		require.NoError(t, os.WriteFile(files[pod], []byte("error"), 0o600))
	}
	return func() {
		for _, file := range files {
			require.NoError(t, os.Remove(file))
		}
	}
}

// Clients disconnect in the middle of their answers; the other clients are unaffected.
func cancels(t *testing.T, c *conforming) {
	apply(t, c.World, 2, "ExpertParallel")
	stay, gone := c.fly(t, 2), c.fly(t, 4)
	for _, f := range gone {
		f.cancel()
		require.ErrorIs(t, (<-f.done).Err, context.Canceled)
	}
	require.Eventually(t, func() bool {
		running := uint64(0)
		for _, n := range c.busy(t) {
			running += n
		}
		return running == uint64(len(stay))
	}, flightLimit, 50*time.Millisecond, "what was cancelled runs on")
	c.landed(t, stay)
}

// longer makes prompts that take several steps.
type longer struct {
	load.Source
	tokens int
}

func (l longer) At(i int) load.Request {
	r := l.Source.At(i)
	prompt := r.Prompt
	for len(r.Prompt) < l.tokens {
		r.Prompt = append(r.Prompt[:len(r.Prompt):len(r.Prompt)], prompt...)
	}
	r.Prompt = r.Prompt[:l.tokens]
	return r
}

// Prompts take several steps, and the world changes during their prefill.
func takesLongPrompts(t *testing.T, c *conforming) {
	apply(t, c.World, conformingRanks, "ExpertParallel")
	source := longer{c.source, 8*c.stepTokens + 1}
	require.Less(t, source.tokens, conformingTokens)
	var asked []chan *load.Result
	for i := range inFlight {
		r := source.At(c.sent + i)
		r.MaxTokens = 16
		asked = append(asked, c.ask(t, r))
	}
	c.sent += inFlight
	began := time.Now()
	apply(t, c.World, conformingRanks-1, "ExpertParallel")
	results := c.answered(t, asked)
	require.True(t, slices.ContainsFunc(results, func(r *load.Result) bool { return r.Tokens[0].At.After(began) }), "all prompts were taken in before the world moved")
	audit(t, c.World, conformingRanks-1)
}

// ask sends a request; the channel gets its result.
func (c *conforming) ask(t *testing.T, r load.Request) chan *load.Result {
	t.Helper()
	done := make(chan *load.Result, 1)
	go func() { done <- client(c.World).Do(t.Context(), r) }()
	return done
}

// answered requires that all ended without an error, with the right tokens.
func (c *conforming) answered(t *testing.T, asked []chan *load.Result) []*load.Result {
	t.Helper()
	var results []*load.Result
	for _, done := range asked {
		r := <-done
		require.NoError(t, r.Err)
		require.Len(t, r.Tokens, r.Request.MaxTokens)
		results = append(results, r)
	}
	c.right(t, results)
	c.quiet(t)
	return results
}

// Requests are sent at the flip of each transition, when the receiving rank cannot yet admit them.
func takesRequestsInAFlip(t *testing.T, c *conforming) {
	apply(t, c.World, 2, "ExpertParallel")
	flights := c.fly(t, 2) // so that there are steps and KV to move
	var asked []chan *load.Result
	for _, ranks := range []int{3, 2} {
		before := len(asked)
		_, err := c.Apply(t.Context(), ranks, "ExpertParallel", nil, func(e harness.Event) {
			if e.Phase != "flip" || len(asked) >= before+inFlight {
				return
			}
			for range inFlight {
				r := c.source.At(c.sent)
				r.MaxTokens = 32
				c.sent++
				asked = append(asked, c.ask(t, r))
			}
		})
		require.NoError(t, err)
		require.Len(t, asked, before+inFlight, "there was no flip")
	}
	for _, f := range flights {
		c.right(t, []*load.Result{f.land(t)})
	}
	c.answered(t, asked)
	audit(t, c.World, 2)
}

// Ranks without requests compute for the only one with a request; the world changes with that request, and with none.
func idles(t *testing.T, c *conforming) {
	apply(t, c.World, 2, "ExpertParallel")
	apply(t, c.World, conformingRanks, "ExpertParallel") // without any request
	c.quiet(t)
	one := c.fly(t, 1)
	require.Eventually(t, func() bool { return len(c.busy(t)) == 1 }, flightLimit, 50*time.Millisecond)
	apply(t, c.World, 2, "ExpertParallel")
	c.landed(t, one)
	audit(t, c.World, 2)
}

// amid runs an action while requests are in flight on three ranks under a keeper. They get the right tokens, and `then`
// ranks are left in the end.
func (c *conforming) amid(t *testing.T, happens func(*alive), then int) {
	t.Helper()
	apply(t, c.World, conformingRanks, "ExpertParallel") // so that the keeper has nothing to do
	a := &alive{World: c.World}
	a.keep(t, conformingRanks, "ExpertParallel")
	defer a.keeper.Kill()
	flights := c.fly(t, inFlight)
	happens(a)
	c.landed(t, flights)
	in := 0
	require.Eventually(t, func() bool {
		all, err := c.Status(t.Context())
		in = len(inWorld(all))
		return err == nil && in == then
	}, 2*time.Minute, 100*time.Millisecond, "%v ranks, and not %d", &in, then)
}

// The leaving rank dies while others copy its KV, ahead of the flip that would migrate its requests: an agent is held
// in the middle of a fetch.
func losesAnEngineAhead(t *testing.T, c *conforming) {
	apply(t, c.World, conformingRanks, "ExpertParallel")
	flights := c.fly(t, inFlight)
	c.everyRankHas(t, conformingRanks)
	const leaver = conformingRanks - 1
	for pod := range leaver {
		path := filepath.Join(c.FaultDir(pod), "kv.before_pull.armed")
		require.NoError(t, os.RemoveAll(strings.TrimSuffix(path, "armed")+"hit"))
		require.NoError(t, os.WriteFile(path, nil, 0o600))
	}
	release := func() {
		for pod := range leaver {
			_ = os.Remove(filepath.Join(c.FaultDir(pod), "kv.before_pull.armed"))
		}
	}
	defer release()
	a := &alive{World: c.World}
	a.keep(t, leaver, "ExpertParallel")
	defer a.keeper.Kill()
	require.Eventually(t, func() bool {
		return slices.ContainsFunc([]int{0, 1}, func(pod int) bool {
			_, err := os.Stat(filepath.Join(c.FaultDir(pod), "kv.before_pull.hit"))
			return err == nil
		})
	}, time.Minute, 10*time.Millisecond, "nobody copied KV")
	a.KillEngine(leaver, 0)
	release()
	a.await(t, "a repair", repaired)
	c.landed(t, flights)
	require.Eventually(t, func() bool {
		all, err := c.Status(t.Context())
		return err == nil && len(inWorld(all)) == leaver
	}, 2*time.Minute, 100*time.Millisecond, "not as many ranks as are wanted")
}

// inWorld lists the members that have a rank.
func inWorld(all []*tangramv1.StatusResponse) (members []string) {
	for _, s := range all {
		for _, r := range s.Ranks {
			if r.InWorld {
				members = append(members, r.Member.Id)
			}
		}
	}
	return members
}

// It restarts with nothing: in time for the repair, or, if it starts slowly, after the world continued without it.
func losesAnEngine(t *testing.T, c *conforming) {
	c.amid(t, func(a *alive) {
		a.KillEngine(a.Living()[1], 0)
		a.await(t, "a repair", repaired)
	}, conformingRanks)
}

func losesAPod(t *testing.T, c *conforming) {
	c.amid(t, func(a *alive) {
		a.KillPod(a.Living()[1])
		d := a.await(t, "a repair", repaired)
		require.Len(t, d.Record.Lost, 1)
	}, conformingRanks-1)
}
