package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/agentclient"
	"tangram.dev/operator/internal/store"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// speaker is an agent with a constant status that records the calls to it. Calls that change something return the given
// answers in order, then nil.
type speaker struct {
	Agent
	says    *tangramv1.StatusResponse // nil: it does not answer
	mu      sync.Mutex
	heard   []string
	answers []error
}

func (s *speaker) hear(format string, args ...any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard = append(s.heard, fmt.Sprintf(format, args...))
	if len(s.answers) == 0 {
		return nil
	}
	answer := s.answers[0]
	s.answers = s.answers[1:]
	return answer
}

func (s *speaker) Address() string { return "somewhere" }

func (s *speaker) Status(context.Context, string) (*tangramv1.StatusResponse, error) {
	if s.says == nil {
		return nil, errors.New("silence")
	}
	return s.says, nil
}

func (s *speaker) Resolve(_ context.Context, h *tangramv1.Header, o tangramv1.Outcome, _ string, lost ...string) error {
	return s.hear("%v %s/%d/%d %v", o, h.World, h.Epoch, h.Attempt, lost)
}

func (s *speaker) Abort(_ context.Context, h *tangramv1.Header, _ string) (bool, error) {
	return false, s.hear("abort %s/%d/%d", h.World, h.Epoch, h.Attempt)
}

func (s *speaker) Release(_ context.Context, h *tangramv1.Header, members []string, ends bool, _ string) error {
	return s.hear("release %s/%d %v %v", h.World, h.Epoch, members, ends)
}

// speakers returns agents with these statuses, and their driver.
func speakers(says ...*tangramv1.StatusResponse) (*Driver, []*speaker) {
	d := &Driver{World: "w", Store: &store.Memory{}, Log: slog.New(slog.DiscardHandler), Limits: Limits{Answer: time.Second, Outcome: time.Second}}
	var all []*speaker
	for _, s := range says {
		one := &speaker{says: s}
		all, d.Agents = append(all, one), append(d.Agents, one)
	}
	return d, all
}

func heard(all []*speaker) (out [][]string) {
	for _, s := range all {
		out = append(out, s.heard)
	}
	return out
}

func refusal(code tangramv1.Refusal_Code) error {
	return &agentclient.Refused{Agent: "somewhere", Refusal: &tangramv1.Refusal{Code: code}}
}

const (
	phasePrepared = tangramv1.Phase_PHASE_PREPARED
	phaseStaged   = tangramv1.Phase_PHASE_STAGED
	phaseFlipped  = tangramv1.Phase_PHASE_FLIPPED
)

// Each agent of a survivor gets the outcome of its attempt once: forward only if the attempt is that of the fence.
func TestResolveSendsOutcomeToSurvivors(t *testing.T) {
	four, five := layoutOf(4, "a", "b", "c", "d", "e", "x"), layoutOf(5, "a", "b", "c", "d", "e", "x")
	words := func() []*tangramv1.StatusResponse {
		return []*tangramv1.StatusResponse{
			in(says(four, "a", "b"), 9, 5, phaseStaged), in(says(five, "c"), 9, 5, phaseFlipped), in(says(four, "d"), 8, 5, phaseStaged), says(four, "e"),
			in(says(nil, "j"), 9, 5, phasePrepared), in(says(four, "x"), 9, 5, phaseStaged), nil, says(nil, "k"), in(says(nil, "l", "m"), 7, 3, phaseStaged)}
	}
	fence := &Fence{FromEpoch: 4, Epoch: 5, Attempt: 9, Outcome: "forward", Survivors: []string{"a", "b", "c", "d", "e"}, Lost: []Lost{{Member: "x"}}}
	tell := func(t *testing.T, outcome string, change func(all []*speaker)) ([][]string, error) {
		said := words()
		d, all := speakers(said...)
		change(all)
		f := *fence
		f.Outcome = outcome
		err := d.resolve(t.Context(), truthOf(t, Membership{Epoch: 4}, said...), &f)
		return heard(all), err
	}
	nothing := func([]*speaker) {}
	got, err := tell(t, "forward", nothing)
	require.NoError(t, err)
	require.Equal(t, [][]string{{"OUTCOME_ROLL_FORWARD w/4/9 [x]"}, nil, {"OUTCOME_ABORT w/4/8 [x]"}, nil, {"abort w/4/9"}, nil, nil, nil, {"abort w/2/7"}}, got)
	got, err = tell(t, "stay", nothing)
	require.NoError(t, err)
	require.Equal(t, [][]string{{"OUTCOME_ABORT w/4/9 [x]"}, nil, {"OUTCOME_ABORT w/4/8 [x]"}, nil, {"abort w/4/9"}, nil, nil, nil, {"abort w/2/7"}}, got)

	// A broken connection is retried, a rejection is not. An agent outside the world decides nothing.
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("connection reset")
		got, err := tell(t, "stay", func(all []*speaker) { all[0].answers = []error{broken, broken} })
		require.NoError(t, err)
		require.Len(t, got[0], 3)
		got, err = tell(t, "stay", func(all []*speaker) { all[2].answers = []error{refusal(tangramv1.Refusal_CODE_ENGINE), broken} })
		require.ErrorIs(t, err, errAgain)
		require.ErrorContains(t, err, "send outcome stay to the survivors")
		require.Len(t, got[2], 1)
		require.Nil(t, got[4], "not before the survivors know")
		began := time.Now()
		_, err = tell(t, "stay", func(all []*speaker) { all[0].answers = slices.Repeat([]error{broken}, 1000) })
		require.ErrorIs(t, err, errAgain)
		require.ErrorIs(t, err, broken)
		require.LessOrEqual(t, time.Since(began), time.Second)
		got, err = tell(t, "stay", func(all []*speaker) { all[4].answers = []error{refusal(tangramv1.Refusal_CODE_ENGINE)} })
		require.NoError(t, err)
		require.Len(t, got[8], 1)
	})
}

// A survivor's open attempt is held before the decision, once for each agent. Then another query is due.
func TestHoldsOpenAttempts(t *testing.T) {
	four := layoutOf(4, "a", "b", "c", "d", "x")
	held := in(says(four, "d"), 9, 5, phaseStaged)
	held.Ranks[0].Transition.Held = true
	words := []*tangramv1.StatusResponse{in(says(four, "a", "b"), 9, 5, phaseStaged), says(four, "c"), held, in(says(four, "x"), 9, 5, phaseStaged)}
	d, all := speakers(words...)
	truth := truthOf(t, Membership{Epoch: 4}, words...)
	require.False(t, d.hold(t.Context(), truth, ruling{survivors: []string{"c", "d"}}))
	require.Equal(t, [][]string{nil, nil, nil, nil}, heard(all))
	all[0].answers = []error{errors.New("connection reset")}
	require.True(t, d.hold(t.Context(), truth, ruling{survivors: []string{"a", "b", "c", "d"}}))
	require.Equal(t, [][]string{{"OUTCOME_HOLD w/4/9 []"}, nil, nil, nil}, heard(all))
}

// An agent of several ranks reports the previous layout until all of them flipped. If one has flipped, the agent gets a
// hold and takes the others there. The outcome names the attempt of its unfinished rank.
func TestHold_WhenOneRankOfAgentFlipped(t *testing.T) {
	four := layoutOf(4, "a", "b", "c")
	half := in(says(four, "a", "b"), 9, 5, phaseStaged)
	half.Ranks[0].Transition.Phase = phaseFlipped
	for _, survivors := range [][]string{{"a", "b", "c"}, {"a", "c"}} { // the other rank's engine may be detached
		d, all := speakers(half, says(four, "c"))
		truth := truthOf(t, Membership{Epoch: 4}, half, says(four, "c"))
		require.True(t, d.hold(t.Context(), truth, ruling{survivors: survivors}))
		require.Equal(t, [][]string{{"OUTCOME_HOLD w/4/9 []"}, nil}, heard(all))
	}
	d, all := speakers(half, says(four, "c"))
	fence := &Fence{FromEpoch: 4, Epoch: 5, Attempt: 9, Outcome: "forward", Survivors: []string{"a", "b", "c"}}
	require.NoError(t, d.resolve(t.Context(), truthOf(t, Membership{Epoch: 4}, half, says(four, "c")), fence))
	require.Equal(t, [][]string{{"OUTCOME_ROLL_FORWARD w/4/9 []"}, nil}, heard(all))
}

// A proposal is aborted in the record first: its driver may be alive, and would permit it while a joiner leaves.
func TestProposalIsAbortedBeforeAttempt(t *testing.T) {
	four := layoutOf(4, "a", "b")
	words := []*tangramv1.StatusResponse{says(four, "a"), says(four, "b"), in(says(nil, "j"), 9, 5, phasePrepared)}
	d, all := speakers(words...)
	version, err := store.Save(t.Context(), d.Store, keyIntent, 0, Intent{Attempt: 9, FromEpoch: 4, State: Proposed})
	require.NoError(t, err)
	all[2].answers = []error{refusal(tangramv1.Refusal_CODE_ENGINE)} // the abort fails: only earlier calls are visible
	require.Error(t, d.end(t.Context(), truthOf(t, Membership{Epoch: 4}, words...), findLeftover(words)))
	require.Equal(t, [][]string{nil, nil, {"abort w/4/9"}}, heard(all))
	require.ErrorIs(t, d.permit(t.Context(), Intent{Attempt: 9, State: Proposed, version: version}), store.ErrConflict)
	// After a permit meanwhile, the agents are queried again, so that members get the abort before the joiner.
	d, all = speakers(in(says(four, "a"), 9, 5, phaseStaged), in(says(four, "b"), 9, 5, phaseStaged), words[2])
	all[0].answers = []error{refusal(tangramv1.Refusal_CODE_ENGINE)}
	require.Error(t, d.end(t.Context(), truthOf(t, Membership{Epoch: 4}, words...), findLeftover(words)))
	require.Nil(t, all[2].heard, "a member that may flip has not said that it did not")
	require.Len(t, all[0].heard, 1)
	// The attempt has ended, or another one is in progress: the caller queries again.
	d, all = speakers(says(four, "a"), says(four, "b"), says(nil, "j"))
	require.NoError(t, d.end(t.Context(), truthOf(t, Membership{Epoch: 4}, words...), findLeftover(words)))
	require.Equal(t, [][]string{nil, nil, nil}, heard(all))
}

// The end of a world covers all members that any report or record names, and releases all of them.
func TestEndWorldCoversAllReportedMembers(t *testing.T) {
	four, five := layoutOf(4, "a", "b", "c"), layoutOf(5, "b", "c", "j")
	words := []*tangramv1.StatusResponse{stopped(says(four, "a")), says(five, "b"), nil, says(five, "j", "q"), in(says(nil, "k"), 9, 6, phaseStaged),
		says(nil, "l"), says(layoutOf(3, "o"), "o"), in(says(nil, "n"), 9, 6, phaseFlipped)}
	words[3].Ranks[1].InWorld = false
	d, all := speakers(words...)
	was := Membership{Epoch: 4, Members: []string{"a", "y"}, Fence: &Fence{FromEpoch: 4, Epoch: 4, Survivors: []string{"a", "b", "j"}, Lost: []Lost{{Member: "z"}}}}
	var err error
	was.version, err = store.Save(t.Context(), d.Store, keyMembership, 0, was)
	require.NoError(t, err)
	truth := truthOf(t, was, words...)
	record := &Record{}
	lost := []Lost{{"c", "it died"}}
	stale := was
	stale.version++
	require.ErrorIs(t, d.endWorld(t.Context(), truth, stale, lost, record, "why"), store.ErrConflict)
	require.Empty(t, record.WorldEnded)
	require.Empty(t, all[0].heard)
	require.NoError(t, d.endWorld(t.Context(), truth, was, lost, record, "why"))
	require.Equal(t, "why", record.WorldEnded)
	now, err := d.membership(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"b", "c", "j", "a", "y", "z", "k"}, now.Ended)
	require.Equal(t, &Fence{FromEpoch: 5, Epoch: 5, Outcome: "stay", Survivors: []string{}, Lost: lost}, now.Fence)
	require.Equal(t, [][]string{{"release w/5 [a] true"}, {"release w/5 [b] true"}, nil, {"release w/5 [j] true"}, {"release w/5 [k] true"}, nil,
		{"release w/5 [o] true"}, nil}, heard(all))
	// A believed member two epochs below belongs to it, too.
	was = Membership{Epoch: 3, version: now.version}
	require.NoError(t, d.endWorld(t.Context(), truthOf(t, was, says(layoutOf(3, "o"), "o", "p"), says(five, "b")), was, nil, record, "why"))
	now, err = d.membership(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"b", "c", "j", "o", "p"}, now.Ended)
	// Without an earlier fence, and with a record that is newer than the agents.
	was = Membership{Epoch: 7, Members: []string{"a"}, version: now.version}
	require.NoError(t, d.endWorld(t.Context(), truthOf(t, was, says(nil, "l")), was, nil, record, "why"))
	now, err = d.membership(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 7, now.Fence.Epoch)
	require.Equal(t, []string{"a"}, now.Ended)
}

// Removed members are released at an epoch above all that they can be in. Failures are left to the next repair.
func TestFencedMembersAreReleased(t *testing.T) {
	four := layoutOf(4, "a", "b")
	record := Membership{Epoch: 4, Fence: &Fence{FromEpoch: 3, Epoch: 3, Survivors: []string{"a", "b"}, Lost: []Lost{{Member: "x"}, {Member: "v"}}}, Ended: []string{"o"}}
	words := []*tangramv1.StatusResponse{says(four, "a"), says(nil, "x", "j", "v"), says(layoutOf(5, "u"), "u"), says(layoutOf(2, "z"), "z"), nil, says(nil, "o"), says(nil, "j2")}
	words[2].Ranks[0].Engine.Stopped = true
	record.Fence.Epoch = 4
	d, all := speakers(words...)
	truth := truthOf(t, record, words...)
	all[1].answers = []error{errors.New("connection reset")}
	d.releaseOutcasts(t.Context(), truth, false)
	want := [][]string{nil, {"release w/4 [x v] false"}, {"release w/6 [u] false"}, {"release w/4 [z] false"}, nil, {"release w/4 [o] true"}, nil}
	require.Equal(t, want, heard(all))
	// An attempt to an epoch before the active one causes a release. One to the active epoch may still join.
	late := []*tangramv1.StatusResponse{says(four, "a"), in(says(nil, "f"), 2, 3, phaseStaged), in(says(nil, "j"), 9, 4, phaseStaged)}
	d, all = speakers(late...)
	d.releaseOutcasts(t.Context(), truthOf(t, record, late...), false)
	require.Equal(t, [][]string{nil, {"release w/4 [f] false"}, nil}, heard(all))
	// An agent with one flipped rank reports the epoch before. It releases both only at an epoch above the target.
	half := in(says(layoutOf(3, "x", "y"), "x", "y"), 9, 4, phaseStaged)
	half.Ranks[0].Transition.Phase = phaseFlipped
	halves := record
	halves.Fence = &Fence{FromEpoch: 3, Epoch: 4, Survivors: []string{"a", "b"}, Lost: []Lost{{Member: "x"}, {Member: "y"}}}
	d, all = speakers(says(four, "a", "b"), half)
	d.releaseOutcasts(t.Context(), truthOf(t, halves, says(four, "a", "b"), half), false)
	require.Equal(t, [][]string{nil, {"release w/5 [x y] false"}}, heard(all))
	d, all = speakers(words...)
	truth.record.Epoch = 9
	d.releaseOutcasts(t.Context(), truth, false)
	require.Equal(t, "release w/9 [u] false", all[2].heard[0])
}
