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

// candidate is an engine as the suite sees it: how a world of it is started, and which tokens are right.
type candidate struct {
	name string
	// start a world of it; the suite says how many pods, and what they are to bear.
	start func(*testing.T, harness.Options) *harness.World
	// source of prompts, short ones.
	source load.Source
	// stepTokens are the most that one rank computes in a step (--max-batch-tokens).
	stepTokens int
	// layers of its checkpoint.
	layers int
	// right demands that tokens of requests that have ended are the right ones.
	right func(*testing.T, []*load.Result)
	// aheadOfLeavers: KV of ranks that leave goes ahead of the flip.
	aheadOfLeavers bool
}

// conforming is a candidate in a world.
type conforming struct {
	candidate
	*harness.World
	sent int // requests so far
}

const (
	conformingTokens = 1024 // of a request, prompt and answer: many times what a transition takes, and little enough that six have room on one rank
	conformingRanks  = 3
	inFlight         = 6
)

// part of the suite. Each begins with requests of its own and a layout of its own, so that each can be played alone.
type part struct {
	name string
	play func(*testing.T, *conforming)
	// deadly: engines end in it.
	deadly bool
}

// Those that end with somebody's death come last: the world is smaller then.
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

// conform plays the suite in one world. Tokens are compared throughout; KV that a flip brought wrong is heard by whoever computes on with it.
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

// members are the engines that are there: one that comes after another has another name.
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

// fly the next requests of the source.
func (c *conforming) fly(t *testing.T, n int) []*flight {
	t.Helper()
	flights := flyOf(t, c.World, c.source, c.sent, n, conformingTokens)
	c.sent += n
	return flights
}

// landed requests have the right tokens, and their KV is free.
func (c *conforming) landed(t *testing.T, flights []*flight) {
	t.Helper()
	var results []*load.Result
	for _, f := range flights {
		results = append(results, f.land(t))
	}
	c.right(t, results)
	c.quiet(t)
}

// quiet: without requests no KV is held, on any rank. What a flip adopted and nobody runs would be here.
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

// carried is what engines brought so far with flips: bytes of KV, as the kit says it in their logs; and how often it did not come.
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

// ahead is what of that was here before the flips, as the engines' logs have it.
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

// even: whole experts and whole requests, shared out.
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

// In the middle each expert is on all ranks in part, and each request's attention on one.
func cuts(t *testing.T, c *conforming) {
	cut := stop{conformingRanks, "ExpertParallel", []string{fmt.Sprintf("0-%d=%d/1", c.layers-1, conformingRanks)}}
	c.through(t, even(conformingRanks), cut, even(conformingRanks))
}

// Who left has nothing, and computes again once it is asked to.
func leaves(t *testing.T, c *conforming) {
	c.through(t, even(3), even(1), even(3))
	flights := c.fly(t, inFlight)
	c.everyRankHas(t, conformingRanks)
	c.landed(t, flights)
}

// everyRankHas requests that run, of so many ranks.
func (c *conforming) everyRankHas(t *testing.T, ranks int) {
	t.Helper()
	require.Eventually(t, func() bool { return len(c.busy(t)) == ranks }, flightLimit, 50*time.Millisecond, "not every rank has a request")
}

// busy ranks of the layout in force: requests that run, by member.
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

// The agents' pull of KV fails, each of its tries, where requests have been adopted: the flip is off, all ranks compute on where they are, and the
// next one adopts them anew.
func callsOff(t *testing.T, c *conforming) {
	apply(t, c.World, conformingRanks, "ExpertParallel")
	_, before := c.carried(t)
	flights := c.fly(t, inFlight)
	c.everyRankHas(t, conformingRanks) // so that the one which leaves has something to be adopted
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

// failPulls makes every pull of KV fail, on all pods, until the returned function is called.
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

// Clients leave in the middle of their answers; the others' are not disturbed.
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

// longer makes prompts of several steps.
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

// Prompts take several steps, and the world moves while they are taken in.
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

// ask a request; its result comes when it ends.
func (c *conforming) ask(t *testing.T, r load.Request) chan *load.Result {
	t.Helper()
	done := make(chan *load.Result, 1)
	go func() { done <- client(c.World).Do(t.Context(), r) }()
	return done
}

// answered: all ended without an error, with the right tokens.
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

// At the flip of each transition requests are sent, which some rank is to take in while it has none for them.
func takesRequestsInAFlip(t *testing.T, c *conforming) {
	apply(t, c.World, 2, "ExpertParallel")
	flights := c.fly(t, 2) // so that there are steps, and something moves
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

// Ranks without a request compute for the one that has one, and the world moves with that one, and with none.
func idles(t *testing.T, c *conforming) {
	apply(t, c.World, 2, "ExpertParallel")
	apply(t, c.World, conformingRanks, "ExpertParallel") // nobody has anything
	c.quiet(t)
	one := c.fly(t, 1)
	require.Eventually(t, func() bool { return len(c.busy(t)) == 1 }, flightLimit, 50*time.Millisecond)
	apply(t, c.World, 2, "ExpertParallel")
	c.landed(t, one)
	audit(t, c.World, 2)
}

// amid has requests in flight, at three ranks under a keeper, while something happens; they get the right tokens, and so many ranks are there in the end.
func (c *conforming) amid(t *testing.T, happens func(*alive), then int) {
	t.Helper()
	apply(t, c.World, conformingRanks, "ExpertParallel") // so that the keeper is in the middle of nothing
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

// The rank that is to leave dies while others copy its KV, ahead of the flip that would have taken its requests: an agent is held in the middle of a pull.
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

// inWorld are the members that have a rank.
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

// It comes back with nothing: into the repair, or, if it starts slowly, to a world that went on without it.
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
