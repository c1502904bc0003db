package driver

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// A ruling waits for running members, for engines that may attach again, and for connections that changed recently. It
// also waits if no member would survive and one may still answer.
func TestFenceDecisionWaitsForStableReports(t *testing.T) {
	stay := tangramv1.Outcome_OUTCOME_ABORT
	ruled := ruling{outcome: stay, survivors: []string{"a", "b", "c"}}
	l := layoutOf(4, "a", "b", "c")
	world := func(t *testing.T, change func(a, b *tangramv1.RankStatus), record ...Membership) *truth {
		a, b, c := stopped(says(l, "a")), stopped(says(l, "b")), stopped(says(l, "c"))
		change(a.Ranks[0], b.Ranks[0])
		return truthOf(t, append(record, Membership{Epoch: 4})[0], a, b, c)
	}
	silent := truthOf(t, Membership{Epoch: 4}, stopped(says(l, "a")), stopped(says(l, "b")), nil)
	unheard := truthOf(t, Membership{Epoch: 4}, stopped(says(l, "a")), stopped(says(l, "b")), nil)
	unheard.agents[0].Ranks[0].Engine.Unreachable = []uint32{2}
	sound := func(_, _ *tangramv1.RankStatus) {}
	cut := func(a, _ *tangramv1.RankStatus) { a.Engine.Unreachable = []uint32{1} }
	away := func(_, b *tangramv1.RankStatus) { b.Engine.Attached = false }
	synctest.Test(t, func(t *testing.T) {
		var w *stillness
		begin := func() {
			w = &stillness{d: &Driver{Limits: Limits{Reattach: time.Second}}}
			time.Sleep(time.Minute)
		}
		says := func(want string, truth *truth, r ruling) {
			t.Helper()
			ready, why := w.due(truth, r)
			require.Equal(t, want, why)
			require.Equal(t, want == "", ready)
		}
		begin()
		says("these members have not stopped: a, b", world(t, sound), ruling{outcome: stay, running: []string{"a", "b"}})
		says("the state of these members is unknown and they may still be running: b, c", world(t, sound), ruling{unknown: []string{"b", "c"}})
		says("no member survives yet, but these members may still respond: c", world(t, sound), ruling{outcome: stay, unknown: []string{"c"}})
		says("", world(t, sound), ruling{outcome: stay})
		says("", world(t, sound), ruled)

		begin()
		const changed = "the connections between engines changed a moment ago"
		says(changed, world(t, cut), ruled)
		time.Sleep(cutsSettle - 1)
		says(changed, world(t, cut), ruled)
		says(changed, world(t, func(_, b *tangramv1.RankStatus) { b.Engine.Unreachable = []uint32{2} }), ruled)
		time.Sleep(cutsSettle - 1)
		says(changed, world(t, func(_, b *tangramv1.RankStatus) { b.Engine.Unreachable = []uint32{2} }), ruled)
		time.Sleep(time.Nanosecond)
		says("", world(t, func(_, b *tangramv1.RankStatus) { b.Engine.Unreachable = []uint32{2} }), ruled)
		says("", world(t, sound), ruled)

		begin()
		hung := ruling{outcome: stay, survivors: []string{"a", "c"}, unknown: []string{"b"}, hung: []string{"b"}}
		says(changed, world(t, sound), hung)
		time.Sleep(hangSettle - 1)
		says(changed, world(t, sound), hung)
		time.Sleep(time.Nanosecond)
		says("", world(t, sound), hung)

		// It may be in a flip, and receive nothing while it fetches KV from a dead rank.
		begin()
		permitted := func(_, b *tangramv1.RankStatus) {
			b.Transition = &tangramv1.TransitionStatus{Attempt: 9, TargetEpoch: 5, Phase: tangramv1.Phase_PHASE_PERMITTED}
		}
		says(changed, world(t, permitted), hung)
		time.Sleep(pullSettle - 1)
		says(changed, world(t, permitted), hung)
		time.Sleep(time.Nanosecond)
		says("", world(t, permitted), hung)

		begin()
		const back = "the engine of member b may attach again"
		says(back, world(t, away), ruled)
		time.Sleep(time.Second - 1)
		says(back, world(t, away), ruled)
		says("", world(t, sound), ruled)
		says(back, world(t, away), ruled)
		time.Sleep(time.Second)
		says("", world(t, away), ruled)
		begin()
		failed := func(_, b *tangramv1.RankStatus) {
			away(nil, b)
			b.Transition = &tangramv1.TransitionStatus{Attempt: 9, TargetEpoch: 5, Phase: tangramv1.Phase_PHASE_FAILED}
		}
		says("", world(t, failed), ruled) // its agent accepts no engine before the ruling ends the attempt
		flipped := func(_, b *tangramv1.RankStatus) {
			away(nil, b)
			b.Transition = &tangramv1.TransitionStatus{Attempt: 8, TargetEpoch: 4, Phase: tangramv1.Phase_PHASE_FLIPPED}
		}
		says(back, world(t, flipped), ruled)
		left := Membership{Epoch: 4, Fence: &Fence{FromEpoch: 4, Epoch: 4, Outcome: "stay", Survivors: []string{"a", "c"}, Lost: []Lost{{Member: "b"}}}}
		begin()
		says("", world(t, away, left), ruled) // a removed member is not waited for
		says("", world(t, cut, left), ruled)  // a removed member's missing connection is no news
		toLost := func(_, b *tangramv1.RankStatus) { b.Engine.Unreachable = []uint32{0} }
		says("", world(t, toLost, left), ruled) // nor is its own report
		begin()
		fresh := func(a, b *tangramv1.RankStatus) { cut(a, b); b.Engine.AttachedAfterFlip = true }
		says("", world(t, fresh), ruled) // it has no addresses of its peers
		begin()
		says("", silent, ruled) // the silent member may not come back
		begin()
		says("", unheard, ruled) // a missing connection to it is no news
		begin()
		says(back, world(t, away), ruled)
		time.Sleep(time.Second)
		says("", world(t, func(a, b *tangramv1.RankStatus) { cut(a, b); away(a, b) }), ruled) // nor is this cut
		begin()
		both := Membership{Epoch: 4, Fence: &Fence{FromEpoch: 4, Epoch: 4, Outcome: "stay", Survivors: []string{"a", "b"}, Lost: []Lost{{Member: "c"}}}}
		says(changed, world(t, cut, both), ruled)

		// Several cuts are equal in any order of the reports.
		begin()
		apart := func(a, b *tangramv1.RankStatus) {
			a.Engine.Unreachable, b.Engine.Unreachable = []uint32{1, 2}, []uint32{0, 2}
		}
		says(changed, world(t, apart), ruled)
		time.Sleep(cutsSettle)
		for range 50 {
			says("", world(t, apart), ruled)
		}
	})
}

// A member is unresponsive if its agent reports a running engine and all other stopped members miss a connection to it.
// it.
func TestDetectsUnresponsiveMember(t *testing.T) {
	hears := func(e evidence, no ...string) evidence { e.unreachable = no; return e }
	runs := func(e evidence) evidence { e.stopped = false; return e }
	away := func(e evidence) evidence { e.attached = false; return e }
	fresh := func(e evidence) evidence { e.fresh = true; return e }
	a, b, c := still("a", 4), runs(still("b", 4)), still("c", 4)
	for name, x := range map[string]struct {
		s    scene
		want bool
	}{
		"nobody hears of it":                {sceneOf(4, hears(a, "b"), b, hears(c, "b")), true},
		"one does":                          {sceneOf(4, hears(a, "b"), b, c), false},
		"one that runs does not count":      {sceneOf(4, hears(a, "b"), b, runs(c)), true},
		"one without engine does not count": {sceneOf(4, hears(a, "b"), b, away(c)), true},
		"one that is new does not count":    {sceneOf(4, hears(a, "b"), b, fresh(c)), true},
		"who does not answer is nobody":     {sceneOf(4, hears(a, "b"), b, evidence{id: "c", stopped: true, attached: true}), true},
		"nobody is there to say it":         {sceneOf(4, runs(a), b), false},
		"it stands still":                   {sceneOf(4, hears(a, "b"), still("b", 4)), false},
		"its engine is away":                {sceneOf(4, hears(a, "b"), away(b)), false},
		"it is in no layout":                {sceneOf(4, hears(a, "b"), runs(still("b", 0))), false},
		"its agent does not answer":         {sceneOf(4, hears(a, "b"), evidence{id: "b", attached: true, epoch: 4}), false},
	} {
		require.Equal(t, x.want, x.s.hangs("b"), name)
	}
	s := sceneOf(4, hears(a, "b"), b)
	s.older = []string{"c"}
	s.members["c"] = still("c", 3)
	require.False(t, s.hangs("b"), "one of the epoch before hears of it")
	r := survivors(sceneOf(4, hears(a, "b"), b, hears(c, "b")))
	require.Equal(t, []string{"b"}, r.hung)
	require.Equal(t, []string{"b"}, r.unknown)
}

// Each removed member gets a reason.
func TestRemovedMembersHaveReasons(t *testing.T) {
	a, c, d := still("a", 5), still("c", 5), still("d", 5)
	b := still("b", 5)
	b.attached = false
	dead, gone := evidence{id: "e", why: "refused"}, evidence{id: "f", why: "its pod is gone", gone: true}
	d.unreachable = []string{"a"}
	other := still("g", 4)
	other.attempt, other.phase = 7, tangramv1.Phase_PHASE_PREPARED
	hangs := still("h", 5)
	hangs.stopped = false
	a.unreachable, c.unreachable, d.unreachable, other.unreachable = []string{"h"}, []string{"h"}, []string{"a", "h"}, []string{"h"}
	s := sceneOf(5, a, b, c, d, dead, gone, other, hangs)
	r := survivors(s)
	require.Equal(t, []string{"a", "c"}, r.survivors)
	require.Equal(t, []Lost{{"b", "its engine is not attached"}, {"d", "its engine cannot reach all survivors"},
		{"e", "its agent is unresponsive: refused"}, {"f", "the member no longer exists: its pod is gone"},
		{"g", "the member is at epoch 4 and has no attempt that leads to epoch 5 (attempt 7, PHASE_PREPARED)"},
		{"h", "its engine is unresponsive: its agent responds, but no other engine receives its heartbeats"}}, r.lost)
	s.fence = &Fence{FromEpoch: 5, Attempt: 3, Epoch: 5, Outcome: "stay", Survivors: []string{"a", "d", "h"}}
	r = survivors(s)
	require.Contains(t, r.lost, Lost{"c", "the fence of epoch 5, attempt 3 removed the member"})
	require.Empty(t, r.survivors)
	require.Contains(t, r.lost, Lost{"a", "the member is the only survivor of 8"})
}

// Members that have the newest layout roll forward, and members that staged the same attempt.
func TestEligibilityForNewestLayout(t *testing.T) {
	s := scene{epoch: 5}
	at := func(epoch, attempt uint64, phase tangramv1.Phase) evidence {
		return evidence{epoch: epoch, attempt: attempt, phase: phase}
	}
	for _, c := range []struct {
		e       evidence
		forward uint64
		can     bool
	}{
		{at(5, 0, tangramv1.Phase_PHASE_IDLE), 0, true},
		{at(4, 9, tangramv1.Phase_PHASE_STAGED), 9, true},
		{at(4, 9, tangramv1.Phase_PHASE_PERMITTED), 9, true},
		{at(4, 9, tangramv1.Phase_PHASE_PREPARED), 9, false},
		{at(4, 9, tangramv1.Phase_PHASE_FAILED), 9, false},
		{at(4, 8, tangramv1.Phase_PHASE_STAGED), 9, false},
		{at(4, 0, tangramv1.Phase_PHASE_STAGED), 0, false},
	} {
		require.Equal(t, c.can, s.canStandOn(c.e, c.forward) == "", "%+v", c)
	}
	flipped := at(5, 9, tangramv1.Phase_PHASE_FLIPPED)
	flipped.id, flipped.answers = "a", true
	waits := at(4, 8, tangramv1.Phase_PHASE_FLIPPED)
	waits.id, waits.answers = "b", true
	s = sceneOf(5, waits, flipped)
	require.EqualValues(t, 9, s.forward(), "not the attempt by which one came to the epoch before")
	flipped.phase = tangramv1.Phase_PHASE_IDLE
	require.Zero(t, sceneOf(5, waits, flipped).forward())
	// A leaver reports the attempt, too.
	leaver := evidence{id: "z", answers: true, attempt: 6, leads: 5, phase: tangramv1.Phase_PHASE_FLIPPED}
	for name, c := range map[string]struct {
		change func(e *evidence)
		newest []string
		want   uint64
	}{
		"it left":               {func(*evidence) {}, []string{"b"}, 6},
		"it stays":              {func(*evidence) {}, []string{"b", "z"}, 0},
		"it does not answer":    {func(e *evidence) { e.answers = false }, []string{"b"}, 0},
		"it is in a layout":     {func(e *evidence) { e.epoch = 4 }, []string{"b"}, 0},
		"it did not flip":       {func(e *evidence) { e.phase = tangramv1.Phase_PHASE_PERMITTED }, []string{"b"}, 0},
		"it flipped to another": {func(e *evidence) { e.leads = 4 }, []string{"b"}, 0},
	} {
		z := leaver
		c.change(&z)
		s = scene{epoch: 5, newest: c.newest, older: []string{"b", "z"}, members: map[string]evidence{"b": waits, "z": z}}
		require.Equal(t, c.want, s.left(), name)
		require.Equal(t, c.want, s.forward(), name)
	}
	s.fence = &Fence{FromEpoch: 4, Epoch: 5, Outcome: "forward", Attempt: 3}
	require.True(t, s.ruledForward())
	require.EqualValues(t, 3, s.forward())
	s.fence.Epoch = 4
	require.False(t, s.ruledForward())
	s.fence.Epoch, s.fence.Outcome = 5, "stay"
	require.False(t, s.ruledForward())
}
