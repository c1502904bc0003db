package balance

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// town is a world whose agents count the tokens that the test routes.
type town struct {
	t     *testing.T
	view  *geometry.View
	book  Book
	m     Moment
	epoch byte
	// firstOnly uses only the first copy of each expert, as an engine without replica support does.
	firstOnly bool
	// brings is the factor of a window's tokens that each rank routes; nil: 1. If set, a rank prefers its own copy.
	brings []uint64
}

func newTown(t *testing.T, ranks int) *town {
	t.Helper()
	g := &tangramv1.Geometry{Model: "test", Layers: 2, Hidden: 16, MoeInner: 64, Experts: 8, TopK: 1,
		QueryHeads: 4, KvHeads: 4, HeadDim: 8, GranuleRows: 8, GranuleBytes: 768, MoeLayers: []uint32{0, 1},
		Dtype: tangramv1.DType_DTYPE_BF16, SlabFormat: tangramv1.SlabFormat_SLAB_FORMAT_GRANULE_MAJOR, PageBytes: 4096,
		DenseBytes: 10000, KvHeadTokenBytes: 64}
	view, err := geometry.New(g)
	require.NoError(t, err)
	x := &town{t: t, view: view, m: Moment{At: time.Unix(1000, 0), World: "w", Geometry: g, Counts: map[string]Counts{}}}
	for r := range ranks {
		id := fmt.Sprintf("%c/0/1", 'a'+r)
		x.m.Ranks = append(x.m.Ranks, &tangramv1.RankStatus{Member: &tangramv1.Member{Id: id, Pod: id[:1], Node: id[:1]}})
		x.m.Counts[id] = Counts{make([]uint64, 16), make([]uint64, 16)}
	}
	return x
}

// flip switches to a shape.
func (x *town) flip(shape layout.Shape) {
	x.t.Helper()
	in := planner.Input{World: "w", Revision: "r", Geometry: x.view, Current: x.m.Layout, Shape: shape}
	for _, r := range x.m.Ranks {
		in.Members = append(in.Members, planner.Member{Member: r.Member, Inventory: r.Inventory, MemoryBytes: r.MemoryBytes})
		in.Target = append(in.Target, r.Member.Id)
	}
	result, err := planner.Plan(in)
	require.NoError(x.t, err)
	x.m.Layout = result.Final
	x.epoch++
	x.m.Hash = []byte{x.epoch}
	for i, r := range x.m.Ranks {
		r.Inventory = layout.InventoryOf(result.Final, x.view, uint32(i))
	}
}

// window routes `tokens` tokens of each (layer, expert) on each rank, and evaluates the window.
func (x *town) window(s Settings, tokens ...uint64) *Report {
	x.m.At = x.m.At.Add(time.Minute)
	counts := map[string]Counts{}
	for id, was := range x.m.Counts {
		now := Counts{slices.Clone(was.Routed), slices.Clone(was.Executed)}
		for i := range now.Routed {
			now.Routed[i] += tokens[i%len(tokens)] * x.times(id)
		}
		counts[id] = now
	}
	x.execute(counts, tokens)
	x.m.Counts = counts
	m := x.m
	return x.book.Look(&m, s)
}

// times returns a member's factor of a window's tokens.
func (x *town) times(id string) uint64 {
	if x.brings == nil {
		return 1
	}
	return x.brings[slices.IndexFunc(x.m.Ranks, func(r *tangramv1.RankStatus) bool { return r.Member.Id == id })]
}

// execute assigns the routed tokens to a rank's own copy, otherwise to the copies in turn; or all to the first copy.
func (x *town) execute(counts map[string]Counts, tokens []uint64) {
	for o, ranks := range layout.PlacementOf(x.m.Layout) {
		for e := range uint32(8) {
			var holders []int
			for r := range ranks {
				if slices.Contains(ranks[r], e) {
					holders = append(holders, r)
				}
			}
			i := o*8 + int(e)
			for source, member := range x.m.Layout.Members {
				asked := tokens[i%len(tokens)] * x.times(member.Id)
				for k, r := range holders {
					share := asked / uint64(len(holders))
					switch {
					case x.firstOnly && k == 0, !x.firstOnly && r == source:
						share = asked
					case x.firstOnly, slices.Contains(holders, source):
						share = 0
					}
					counts[x.m.Layout.Members[r].Id].Executed[i] += share
				}
			}
		}
	}
}

var hot = []uint64{400, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 400}

func TestRebalanceDeliversPredictedBalance(t *testing.T) {
	x := newTown(t, 4)
	s := Settings{Every: time.Minute, MinGain: .02, Redundant: 4}
	require.Equal(t, "No layout is active.", x.window(s, 1).Why)
	x.flip(layout.Shape{Mode: layout.Expert})
	require.Equal(t, Observing, x.window(s, hot...).Outcome, "the window begins")
	r := x.window(s, 1)
	require.Equal(t, Observing, r.Outcome)
	require.Contains(t, r.Why, "The experts have received 64 tokens in this window. The window continues until 128 tokens")

	r = x.window(s, hot...) // with the few of before
	require.Equal(t, Move, r.Outcome, r.Why)
	require.InDelta(t, 4*(470*2+16), r.Tokens, 0)
	require.InDelta(t, r.Balance.Aggregate, r.Decision.Before, .05, "the forecast after one window is near that window")
	require.Greater(t, r.Decision.After, .5+r.Decision.Before)
	require.Len(t, r.RankLoads, 2)
	require.Nil(t, r.Last)

	before := x.m.Layout
	x.flip(layout.Shape{Mode: layout.Expert, Placement: r.Decision.Placement})
	require.NoError(t, x.book.Done(x.m.At, r, before))
	require.Equal(t, Observing, x.window(s, hot...).Outcome, "not a whole window")
	after := x.window(s, hot...)
	require.Contains(t, []Outcome{Stay, NotWorth}, after.Outcome, after.Why)
	require.True(t, after.Last.Kept)
	require.InDelta(t, r.Decision.After, after.Last.Measured, .01)
	require.InDelta(t, r.Decision.Before, after.Last.Without, .03)
	require.InDelta(t, after.Balance.Aggregate, after.Last.Measured, 1e-9)
	require.InDelta(t, 1, x.book.trust, .01)
}

// The load changes right after the move: the next promise counts for less.
func TestWrongPredictionLowersTrust(t *testing.T) {
	x := newTown(t, 4)
	s := Settings{Every: time.Minute, MinGain: .02}
	x.flip(layout.Shape{Mode: layout.Expert})
	x.window(s, 1)
	mixed := []uint64{60, 60, 10, 10, 10, 10, 10, 10, 60, 60, 10, 10, 10, 10, 10, 10}
	r := x.window(s, mixed...)
	require.Equal(t, Move, r.Outcome, r.Why)
	before := x.m.Layout
	x.flip(layout.Shape{Mode: layout.Expert, Placement: r.Decision.Placement})
	require.NoError(t, x.book.Done(x.m.At, r, before))
	x.window(s, 1)
	r = x.window(s, 10)
	require.InDelta(t, leastTrust, x.book.trust, 1e-9)
	for range 300 {
		r = x.window(s, 10)
	}
	require.InDelta(t, 1, x.book.trust, 1e-9, "nothing is held against it for ever: "+r.Why)
}

func TestRebalance_WhenMovesDoNotPayOff(t *testing.T) {
	x := newTown(t, 4)
	s := Settings{Every: time.Minute, PayBack: time.Minute, Redundant: 4}
	x.flip(layout.Shape{Mode: layout.Expert})
	x.window(s, 1)
	x.book.Moved(10, 1) // an expert is 6 KiB: its copy takes longer than it can gain in a minute
	r := x.window(s, hot...)
	require.Equal(t, Stay, r.Outcome, r.Why)
	require.Contains(t, r.Why, "No move pays off")
	x.book.Moved(1<<40, 1)
	x.book.Moved(0, 1)
	require.Equal(t, Move, x.window(s, hot...).Outcome)
}

// Ranks with unequal numbers of tokens use their own copies for them. The promise and the balance without the move
// account for it.
func TestPrediction_WhenRanksRouteUnequalTokens(t *testing.T) {
	tokens := []uint64{2400, 120, 120, 120, 120, 120, 120, 120, 120, 120, 120, 120, 120, 120, 120, 2400}
	s := Settings{Every: time.Minute, MinGain: .02, Redundant: 4}
	promised := func(brings ...uint64) (decided *Report, x *town) {
		x = newTown(t, 4)
		x.brings = brings
		x.flip(layout.Shape{Mode: layout.Expert})
		x.window(s, 1)
		r := x.window(s, tokens...)
		require.Equal(t, Move, r.Outcome, r.Why)
		before := x.m.Layout
		x.flip(layout.Shape{Mode: layout.Expert, Placement: r.Decision.Placement})
		require.NoError(t, x.book.Done(x.m.At, r, before))
		x.window(s, tokens...)
		after := x.window(s, tokens...)
		require.True(t, after.Last.Kept)
		require.InDelta(t, r.Decision.After, after.Last.Measured, .02)
		require.InDelta(t, r.Decision.Before, after.Last.Without, .03)
		require.InDelta(t, after.Decision.Before, after.Last.Measured, .03, "of the layout that is in force by now")
		return after, x
	}
	alike, _ := promised(1, 1, 1, 1)
	unlike, x := promised(1, 1, 1, 5)
	require.Less(t, unlike.Last.Promised, alike.Last.Promised-.1, "the busy rank has a copy of the hot experts")

	// A rank that joined during the window has no counts yet: all ranks count as equal.
	delete(x.book.counts, x.m.Ranks[3].Member.Id)
	w, err := x.book.window(&x.m)
	require.NoError(t, err)
	require.Nil(t, w.parts)
}

// In a hybrid, only the layers with whole experts are measured, placed and promised for.
func TestRebalance_WhenLayoutIsHybrid(t *testing.T) {
	x := newTown(t, 4)
	s := Settings{Every: time.Minute, MinGain: .02, Redundant: 4}
	shape, err := layout.Ranges{{First: 0, Last: 0, ExpertGroup: 2, AttentionGroup: 4}}.On(x.view, 4)
	require.NoError(t, err)
	x.flip(shape)
	x.window(s, hot...)
	r := x.window(s, hot...)
	require.Equal(t, Move, r.Outcome, r.Why)
	require.Equal(t, []int{1}, r.Layers)
	require.Len(t, r.Balance.Layers, 1)
	require.Len(t, r.RankLoads, 1)
	require.Nil(t, r.Decision.Placement[0], "its experts are shared")
	before, placed := x.m.Layout, shape
	placed.Placement = r.Decision.Placement
	x.flip(placed)
	require.NoError(t, x.book.Done(x.m.At, r, before))
	x.window(s, hot...)
	after := x.window(s, hot...)
	require.Contains(t, []Outcome{Stay, NotWorth}, after.Outcome, after.Why)
	require.True(t, after.Last.Kept)
	require.InDelta(t, r.Decision.After, after.Last.Measured, .01)

	// Another layer has whole experts by the next window: the promise for the first one does not count.
	x.flip(shape)
	x.window(s, hot...)
	r = x.window(s, hot...)
	require.Equal(t, Move, r.Outcome, r.Why)
	require.NoError(t, x.book.Done(x.m.At, r, x.m.Layout))
	other, err := layout.Ranges{{First: 1, Last: 1, ExpertGroup: 2, AttentionGroup: 1}}.On(x.view, 4)
	require.NoError(t, err)
	x.flip(other)
	x.window(s, hot...)
	after = x.window(s, hot...)
	require.Equal(t, []int{0}, after.Layers)
	require.False(t, after.Last.Kept)
}

func TestRebalance_WhenNotPossible(t *testing.T) {
	x := newTown(t, 2)
	s := Settings{Every: time.Minute, Redundant: 8}
	x.flip(layout.Shape{Mode: layout.Tensor})
	require.Equal(t, NotExpert, x.window(s, hot...).Outcome)
	x.flip(layout.Shape{Mode: layout.Expert})
	x.window(s, 1)

	peak := uint64(0)
	plain, err := planner.Plan(planner.Input{World: "w", Revision: "r", Geometry: x.view, Shape: layout.Shape{Mode: layout.Expert},
		Members: []planner.Member{{Member: x.m.Ranks[0].Member}, {Member: x.m.Ranks[1].Member}}, Target: []string{"a/0/1", "b/0/1"}})
	require.NoError(t, err)
	for _, flip := range plain.Plan.Flips {
		for _, part := range flip.Parts {
			peak = max(peak, part.PeakBytes)
		}
	}
	for _, r := range x.m.Ranks {
		r.MemoryBytes = peak + 8<<10 // room for one more expert
	}
	r := x.window(s, hot...)
	require.Equal(t, Failed, r.Outcome, r.Why)
	require.Contains(t, r.Why, "the placement does not fit: 8 redundant experts per layer")
	s.Automatic = true
	r = x.window(s, hot...)
	require.NotEqual(t, Failed, r.Outcome, r.Why)
	require.Zero(t, r.Decision.Redundant)

	x.m.Counts["a/0/1"].Routed[3] = 1 << 40
	x.window(s, 1)
	x.m.Counts["a/0/1"].Routed[3] = 7
	r = x.window(s, 1)
	require.Contains(t, r.Why, "member a/0/1, layer 0, expert 3: 8 tokens routed, fewer than the 1099511627776 before; counts must not shrink")
	x.m.Counts["a/0/1"] = Counts{x.m.Counts["a/0/1"].Routed[:3], x.m.Counts["a/0/1"].Executed}
	require.Contains(t, x.window(s, 1).Why, "reports tokens routed for 3 (layer, expert) pairs, but the model has 2 layers of 8 experts")
}

// Measured is the balancedness of the executed tokens. An engine that uses only one copy of each expert does not get
// the value of evenly used copies.
func TestMeasuredBalanceUsesExecutedTokens(t *testing.T) {
	for _, firstOnly := range []bool{false, true} {
		x := newTown(t, 4)
		s := Settings{Every: time.Minute, MinGain: .02, Redundant: 4}
		x.flip(layout.Shape{Mode: layout.Expert})
		x.window(s, 1)
		r := x.window(s, hot...)
		require.Equal(t, Move, r.Outcome, r.Why)
		before := x.m.Layout
		x.flip(layout.Shape{Mode: layout.Expert, Placement: r.Decision.Placement})
		require.NoError(t, x.book.Done(x.m.At, r, before))
		x.firstOnly = firstOnly
		x.window(s, hot...)
		last := x.window(s, hot...).Last
		require.True(t, last.Kept)
		if firstOnly {
			require.Less(t, last.Measured, .5, "the hot experts have one rank each, whatever copies there are")
		} else {
			require.Greater(t, last.Measured, .95)
		}
	}
}

func TestRebalance_WhenExecutedTokensUnreported(t *testing.T) {
	x := newTown(t, 2)
	x.flip(layout.Shape{Mode: layout.Expert})
	s := Settings{Every: time.Minute}
	x.window(s, 1)
	m := x.m
	m.Counts = map[string]Counts{}
	for id, c := range x.m.Counts {
		m.Counts[id] = Counts{slices.Clone(c.Routed), c.Executed}
		for i := range c.Routed {
			m.Counts[id].Routed[i] += 100
		}
	}
	r := x.book.Look(&m, s)
	require.Equal(t, Failed, r.Outcome)
	require.Contains(t, r.Why, "the engines must call tg_count_executed")
}
