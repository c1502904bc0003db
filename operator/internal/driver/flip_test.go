package driver

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/store"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

func (s *speaker) Permit(_ context.Context, h *tangramv1.Header) error {
	return s.hear("permit %s/%d/%d", h.World, h.Epoch, h.Attempt)
}

func (s *speaker) Watch(ctx context.Context, _ string, each func(*tangramv1.StatusResponse)) error {
	if s.says == nil {
		return errors.New("silence")
	}
	each(s.says)
	<-ctx.Done()
	return ctx.Err()
}

// flipOf returns a flip of these agents from their layout to epoch 5, by attempt 9. All of them take part.
func flipOf(t *testing.T, kind tangramv1.FlipKind, target *tangramv1.Layout, says ...*tangramv1.StatusResponse) (*flipRun, []*speaker) {
	t.Helper()
	d, all := speakers(says...)
	truth := truthOf(t, Membership{}, says...)
	hash, err := layout.Hash(target)
	require.NoError(t, err)
	r := &flipRun{d: d, truth: truth, target: target, record: &Record{}, flip: &tangramv1.Flip{Kind: kind, Epoch: target.Epoch, TargetHash: hash},
		header: &tangramv1.Header{World: "w", Epoch: truth.epoch(), Attempt: 9}, members: membersOf(truth.layout, target)}
	for i := range says {
		r.agents = append(r.agents, i)
	}
	var stop func()
	r.board, stop = d.watch(t.Context(), r.agents, 9)
	t.Cleanup(stop)
	require.Eventually(t, func() bool { latest, _, _ := r.board.look(); return len(latest) == len(says) }, time.Minute, time.Millisecond)
	return r, all
}

const (
	kindFirst  = tangramv1.FlipKind_FLIP_KIND_FIRST
	kindJoin   = tangramv1.FlipKind_FLIP_KIND_JOIN
	kindLayout = tangramv1.FlipKind_FLIP_KIND_LAYOUT
	kindRepair = tangramv1.FlipKind_FLIP_KIND_REPAIR
)

// A lost member ends a flip. A lost joiner ends only the attempt. In a repair a member may be stopped before the flip.
func TestFlip_WhenMemberOrJoinerLost(t *testing.T) {
	four, five := layoutOf(4, "a", "b"), layoutOf(5, "a", "b", "j")
	for name, c := range map[string]struct {
		kind   tangramv1.FlipKind
		says   *tangramv1.StatusResponse
		change func(*tangramv1.EngineStatus)
		want   string // of the error; empty: none
		repair bool   // the error is ErrNeedsRepair
	}{
		"all is well":              {kindJoin, says(four, "b"), func(*tangramv1.EngineStatus) {}, "", false},
		"a member has no engine":   {kindJoin, says(four, "b"), func(e *tangramv1.EngineStatus) { e.Attached = false }, "member b is detached", true},
		"a member stands still":    {kindJoin, says(four, "b"), func(e *tangramv1.EngineStatus) { e.Stopped = true }, "member b is stopped", true},
		"a joiner has no engine":   {kindJoin, says(nil, "j"), func(e *tangramv1.EngineStatus) { e.Attached = false }, "the engine of joining member j is detached", false},
		"a joiner stands still":    {kindJoin, says(nil, "j"), func(e *tangramv1.EngineStatus) { e.Stopped = true }, "", false},
		"it has joined, and died":  {kindJoin, says(five, "j"), func(e *tangramv1.EngineStatus) { e.Attached = false }, "member j is detached", true},
		"it has joined, and stops": {kindJoin, says(five, "j"), func(e *tangramv1.EngineStatus) { e.Stopped = true }, "member j is stopped", true},
		"who has no part":          {kindJoin, says(nil, "k"), func(e *tangramv1.EngineStatus) { e.Attached = false }, "", false},
		"it waits for its repair":  {kindRepair, says(four, "b"), func(e *tangramv1.EngineStatus) { e.Stopped = true }, "", false},
		"it dies in its repair":    {kindRepair, says(four, "b"), func(e *tangramv1.EngineStatus) { e.Attached = false }, "member b is detached", true},
		"it stops once repaired":   {kindRepair, says(five, "b"), func(e *tangramv1.EngineStatus) { e.Stopped = true }, "member b is stopped", true},
	} {
		t.Run(name, func(t *testing.T) {
			r := &flipRun{truth: truthOf(t, Membership{}, says(four, "a")), flip: &tangramv1.Flip{Kind: c.kind, Epoch: 5},
				members: membersOf(four, five), board: &board{}}
			c.change(c.says.Ranks[0].Engine)
			err := r.broken(map[int]*tangramv1.StatusResponse{1: c.says})
			if c.want == "" {
				require.NoError(t, err)
				r.board.forgotten = errors.New("it forgot")
				require.EqualError(t, r.broken(map[int]*tangramv1.StatusResponse{1: c.says}), "it forgot")
				return
			}
			require.ErrorContains(t, err, c.want)
			require.Equal(t, c.repair, errors.Is(err, ErrNeedsRepair))
		})
	}
	synctest.Test(t, func(t *testing.T) {
		a, b := stopped(says(four, "a")), stopped(says(four, "b"))
		a.Ranks[0].Engine.Unreachable = []uint32{1}
		latest := map[int]*tangramv1.StatusResponse{0: a, 1: b}
		r := &flipRun{truth: truthOf(t, Membership{}, a, b), flip: &tangramv1.Flip{Kind: kindRepair, Epoch: 5}, members: membersOf(nil, four), board: &board{}}
		require.NoError(t, r.broken(latest))
		time.Sleep(hangSettle)
		require.ErrorContains(t, r.broken(latest), "a cannot reach b")
	})
}

// Checks and writes of the membership record before the permit.
func TestMayPermitChecksMembershipRecord(t *testing.T) {
	four, five := layoutOf(4, "a"), layoutOf(5, "a")
	saved := func(r *flipRun, m Membership) uint64 {
		now, err := r.d.membership(t.Context())
		require.NoError(t, err)
		version, err := store.Save(t.Context(), r.d.Store, keyMembership, now.version, m)
		require.NoError(t, err)
		return version
	}
	r, _ := flipOf(t, kindLayout, five, says(four, "a"))
	version := saved(r, Membership{Epoch: 4})
	require.NoError(t, r.mayPermit(t.Context()))
	now, err := r.d.membership(t.Context())
	require.NoError(t, err)
	require.Equal(t, version, now.version, "any other flip writes nothing")

	r.flip.Kind, r.fence = kindRepair, version
	require.NoError(t, r.mayPermit(t.Context()))
	now, err = r.d.membership(t.Context())
	require.NoError(t, err)
	require.Equal(t, Membership{Epoch: 4, Repair: 9, version: version + 1}, now)
	require.ErrorIs(t, r.mayPermit(t.Context()), store.ErrConflict)
	require.ErrorContains(t, r.mayPermit(t.Context()), "membership is at version 2, but the fence was at version 1")

	r, _ = flipOf(t, kindFirst, layoutOf(1, "a"), says(nil, "a"))
	require.NoError(t, r.mayPermit(t.Context()))
	now, err = r.d.membership(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, now.Epoch)
	require.Equal(t, []string{"a"}, now.Members)
	require.ErrorIs(t, r.mayPermit(t.Context()), store.ErrConflict)
	require.ErrorContains(t, r.mayPermit(t.Context()), "the record is already at epoch 1")

	r.d.Store = unreadable{}
	require.ErrorIs(t, r.mayPermit(t.Context()), errUnreadable)
	r.flip.Kind = kindRepair
	require.ErrorIs(t, r.mayPermit(t.Context()), errUnreadable)
	r.flip.Kind = kindLayout
	require.ErrorIs(t, r.mayPermit(t.Context()), errUnreadable)
}

// unreadable stores fail on reads.
type unreadable struct{ store.Store }

var errUnreadable = errors.New("the disk is broken")

func (unreadable) Get(context.Context, string) (store.Record, error) {
	return store.Record{}, errUnreadable
}

// Progress has the bytes of the flip and their rate.
func TestProgressReportsBytesAndRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []Event
		r := &flipRun{d: &Driver{Hooks: Hooks{Progress: func(e Event) { told = append(told, e) }}}, event: Event{Flip: 1, Flips: 2, Kind: "join", Epoch: 5}}
		began := time.Now()
		r.tell("stage", verdict{bytesDone: 100, bytesTotal: 300}, began)
		time.Sleep(2 * time.Second)
		r.tell("stage", verdict{bytesDone: 100, bytesTotal: 300}, began)
		r.tell("flip", verdict{}, time.Now())
		require.Equal(t, []Event{{1, 2, "join", 5, "stage", 100, 300, 0}, {1, 2, "join", 5, "stage", 100, 300, 50}, {1, 2, "join", 5, "flip", 0, 0, 0}}, told)
	})
}

// Joiners are permitted before members. An agent that has flipped by then rejects the permit, which is no error.
func TestPermitsJoinersBeforeMembers(t *testing.T) {
	four, five := layoutOf(4, "a", "b"), layoutOf(5, "a", "b", "j")
	words := []*tangramv1.StatusResponse{says(four, "a"), says(nil, "j"), says(four, "b")}
	r, all := flipOf(t, kindJoin, five, words...)
	all[2].answers = []error{refusal(tangramv1.Refusal_CODE_WRONG_PHASE)}
	require.NoError(t, r.permitAll(t.Context()))
	permit := []string{"permit w/4/9"}
	require.Equal(t, [][]string{permit, permit, permit}, heard(all))
	r, all = flipOf(t, kindJoin, five, words...)
	no := refusal(tangramv1.Refusal_CODE_ENGINE)
	all[1].answers = []error{no}
	require.ErrorIs(t, r.permitAll(t.Context()), no)
	require.Equal(t, [][]string{nil, permit, nil}, heard(all))
}

// Before the permit all agents get the abort, and its id is not reused. If a member is lost, a repair ends it instead.
func TestAbortBeforePermit(t *testing.T) {
	cause := errors.New("no room")
	begin := func(kind tangramv1.FlipKind) (*flipRun, []*speaker) {
		r, all := flipOf(t, kind, layoutOf(5, "a", "j"), says(layoutOf(4, "a"), "a"), says(nil, "j"))
		_, err := store.Save(t.Context(), r.d.Store, keyIntent, 0, Intent{Attempt: 9, State: Proposed})
		require.NoError(t, err)
		return r, all
	}
	state := func(r *flipRun) IntentState {
		var intent Intent
		_, err := store.Load(t.Context(), r.d.Store, keyIntent, &intent)
		require.NoError(t, err)
		return intent.State
	}
	told := []string{"abort w/4/9"}
	r, all := begin(kindJoin)
	err := r.abort(t.Context(), cause)
	require.EqualError(t, err, "attempt 9 aborted, the old layout stays active: no room")
	require.ErrorIs(t, err, cause)
	require.Equal(t, [][]string{told, told}, heard(all))
	require.Equal(t, Aborted, state(r))

	r, all = begin(kindJoin)
	err = r.abort(t.Context(), errors.Join(cause, ErrNeedsRepair))
	require.ErrorIs(t, err, ErrNeedsRepair)
	require.ErrorContains(t, err, "attempt 9 is left to the repair")
	require.Equal(t, [][]string{nil, nil}, heard(all))
	require.Equal(t, Proposed, state(r))

	r, all = begin(kindJoin)
	no := refusal(tangramv1.Refusal_CODE_ENGINE)
	all[0].answers = []error{no}
	err = r.abort(t.Context(), cause)
	require.ErrorIs(t, err, cause)
	require.ErrorIs(t, err, no)
	require.Equal(t, Proposed, state(r))

	r, _ = begin(kindJoin)
	r.d.Agents[0] = flippedAlready{r.d.Agents[0]}
	err = r.abort(t.Context(), cause)
	require.ErrorContains(t, err, "no room; the abort also failed: an agent reports that it flipped attempt 9, which was never permitted")
	require.Equal(t, Proposed, state(r))

	// A failure takes precedence over another agent's answer.
	r, all = flipOf(t, kindLayout, layoutOf(5, "a", "b"), says(layoutOf(4, "a", "b"), "a"), says(layoutOf(4, "a", "b"), "b"))
	r.d.Agents[0], all[1].answers = flippedAlready{r.d.Agents[0]}, []error{no}
	err = r.abort(t.Context(), cause)
	require.ErrorIs(t, err, no)
	require.NotContains(t, err.Error(), "never permitted")

	// The record of a first layout is removed; other flips change nothing.
	for _, kind := range []tangramv1.FlipKind{kindFirst, kindLayout} {
		r, _ = begin(kind)
		require.NoError(t, r.d.found(t.Context(), Membership{}, r.flip, r.target))
		require.ErrorIs(t, r.abort(t.Context(), cause), cause)
		m, err := r.d.membership(t.Context())
		require.NoError(t, err)
		require.Equal(t, kind == kindFirst, m.Epoch == 0)
		require.Equal(t, Aborted, state(r))
	}
	r, _ = begin(kindFirst)
	r.d.Store = halfRead{r.d.Store}
	require.ErrorIs(t, r.abort(t.Context(), cause), errUnreadable)
	require.Equal(t, Proposed, state(r))
}

// halfRead stores have lost the membership record.
type halfRead struct{ store.Store }

func (s halfRead) Get(ctx context.Context, key string) (store.Record, error) {
	if key == keyMembership {
		return store.Record{}, errUnreadable
	}
	return s.Store.Get(ctx, key)
}

// flippedAlready agents answer an abort with "flipped".
type flippedAlready struct{ Agent }

func (flippedAlready) Abort(context.Context, *tangramv1.Header, string) (bool, error) {
	return true, nil
}

// The next flip uses the latest stream messages. If a stream is down, all agents are queried, unless no flip follows.
func TestNextFlipUsesStreamReports(t *testing.T) {
	four, five := layoutOf(4, "a", "b"), layoutOf(5, "a", "b")
	hash, err := layout.Hash(five)
	require.NoError(t, err)
	flipped := func(id string) *tangramv1.StatusResponse {
		s := says(five, id)
		s.LayoutHash = hash
		return s
	}
	begin := func(flips int, a, b *tangramv1.StatusResponse) *flipRun { // with these later reports of both
		r, all := flipOf(t, kindLayout, five, says(four, "a"), says(four, "b"))
		r.event = Event{Flip: 1, Flips: flips}
		all[0].says, all[1].says = a, b
		r.board.latest = map[int]*tangramv1.StatusResponse{0: flipped("a"), 1: flipped("b")}
		return r
	}
	down := func(r *flipRun) *flipRun {
		r.board.lost[1] = silence{why: errors.New("reset")}
		return r
	}
	other := says(layoutOf(6, "a", "b"), "a")
	at, err := begin(2, other, nil).after(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 5, at.epoch(), "nobody was asked")
	at, err = down(begin(2, flipped("a"), flipped("b"))).after(t.Context())
	require.NoError(t, err)
	require.Same(t, five, at.layout)
	_, err = down(begin(2, flipped("a"), nil)).after(t.Context())
	require.ErrorIs(t, err, ErrNeedsRepair)
	_, err = down(begin(2, nil, nil)).after(t.Context())
	require.ErrorContains(t, err, "query the agents")
	_, err = down(begin(2, other, flipped("b"))).after(t.Context())
	require.ErrorContains(t, err, "the agents are at epoch 6, layout 6861736820")
	require.ErrorContains(t, err, "check whether another driver is running")
	at, err = down(begin(1, nil, nil)).after(t.Context())
	require.NoError(t, err, "it was the last one")
	require.EqualValues(t, 5, at.epoch())

	for flips, broken := range map[int]bool{1: false, 2: true} {
		r := begin(flips, nil, nil)
		r.board.latest[1] = stopped(flipped("b"))
		_, err = r.after(t.Context())
		require.Equal(t, broken, errors.Is(err, ErrNeedsRepair))
		r.board.latest[1] = says(four, "b")
		_, err = r.after(t.Context())
		require.ErrorContains(t, err, "member b is at epoch 4")
	}
}

// late agents take some time for each call.
type late struct{ Agent }

func (l late) Prepare(ctx context.Context, q *tangramv1.PrepareRequest) error {
	time.Sleep(100 * time.Millisecond)
	return l.Agent.Prepare(ctx, q)
}

func (l late) Stage(ctx context.Context, h *tangramv1.Header) error {
	time.Sleep(200 * time.Millisecond)
	return l.Agent.Stage(ctx, h)
}

func (l late) Permit(ctx context.Context, h *tangramv1.Header) error {
	time.Sleep(300 * time.Millisecond)
	return l.Agent.Permit(ctx, h)
}

func (l late) Retire(ctx context.Context, h *tangramv1.Header) error {
	time.Sleep(500 * time.Millisecond)
	return l.Agent.Retire(ctx, h)
}

// The record has the seconds of each phase, each from its own start, and the moved bytes.
func TestFlipRecordsPhasesAndBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := setup(t, 2)
		_, err := d.Apply(t.Context(), expert(2))
		require.NoError(t, err)
		d.Limits.Flip = time.Second
		d.Agents[1] = late{d.Agents[1]}
		record, err := d.Apply(t.Context(), tensor(2))
		require.NoError(t, err)
		require.Len(t, record.Flips, 2)
		d.Run = 1
		_, err = d.Apply(t.Context(), expert(2))
		require.NoError(t, err)
		record, err = d.Apply(t.Context(), tensor(2))
		require.NoError(t, err)
		require.Len(t, record.Flips, 2)
		for _, f := range record.Flips {
			require.InDelta(t, 0.1, f.Seconds.Prepare, 0.01)
			require.InDelta(t, 0.2, f.Seconds.Stage, 0.01)
			require.InDelta(t, 0.3, f.Seconds.Flip, 0.01)
			require.InDelta(t, 0.5, f.Seconds.Retire, 0.01)
			require.Equal(t, uint64(2<<20), f.Bytes.TCP)
		}
		require.InDelta(t, 1, record.Seconds.Retire, 0.02)
		require.Equal(t, uint64(4<<20), record.Bytes.TCP)
		var intent Intent
		_, err = store.Load(t.Context(), d.Store, keyIntent, &intent)
		require.NoError(t, err)
		require.Equal(t, Done, intent.State)
		require.Equal(t, record.Flips[1].Attempt, intent.Attempt)

		// If the intent cannot be written, nothing begins. If its end cannot be written, the error says so.
		d.Store = failing{d.Store, Proposed}
		_, err = d.Apply(t.Context(), expert(2))
		require.ErrorIs(t, err, errUnreadable)
		require.ErrorContains(t, err, "record the intent")
		d.Store = failing{d.Store.(failing).Store, Permitted}
		_, err = d.Apply(t.Context(), expert(2))
		require.ErrorIs(t, err, errUnreadable)
		require.ErrorContains(t, err, "aborted, the old layout stays active: record the permit")
		d.Store = failing{d.Store.(failing).Store, Done}
		record, err = d.Apply(t.Context(), expert(2))
		require.ErrorIs(t, err, errUnreadable)
		require.Len(t, record.Flips, 1, "it was done all the same")
	})
}

// failing stores cannot write an intent in this state.
type failing struct {
	store.Store
	state IntentState
}

func (f failing) CompareAndSwap(ctx context.Context, key string, version uint64, value json.RawMessage) (uint64, error) {
	var intent Intent
	if key == keyIntent && json.Unmarshal(value, &intent) == nil && intent.State == f.state {
		return 0, errUnreadable
	}
	return f.Store.CompareAndSwap(ctx, key, version, value)
}
