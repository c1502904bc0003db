package world

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/balance"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// proposed skews the load and returns a snapshot with a proposed move.
func (b *bench) proposed() Snapshot {
	b.t.Helper()
	b.agents.Route(b.agents.Skew())
	b.SetRebalance(&balance.Settings{Every: 20 * time.Millisecond, MinGain: .02, Redundant: 2})
	return b.until(func(s Snapshot) bool { return s.Balance != nil && s.Balance.Outcome == balance.Move })
}

func TestRebalance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 2)
		require.Nil(t, b.Snapshot().Balance)
		s := b.proposed()
		require.Less(t, s.Balance.Balance.Aggregate, .8)
		proposal, n := s.Balance, &notes{}
		goal := b.goal(n, layout.Expert, 2)
		goal.Rebalance = proposal
		b.agents.HoldStage(true)
		require.True(t, b.Begin(goal))
		s = b.until(func(s Snapshot) bool { return s.Running != nil && s.Running.Phase == "stage" })
		require.True(t, s.Rebalancing)
		b.agents.HoldStage(false)
		s = b.until(func(s Snapshot) bool { return s.Balance != nil && s.Balance.Last != nil && s.Balance.Last.Kept })
		require.Equal(t, []error{nil}, n.ended())
		require.False(t, s.Rebalancing)
		require.NotEqual(t, proposal.Layout, s.Hash)
		require.InDelta(t, proposal.Decision.After, s.Balance.Last.Measured, .02)
		require.Greater(t, s.Balance.Last.Measured, .95)
		require.Contains(t, []balance.Outcome{balance.Stay, balance.NotWorth}, s.Balance.Outcome, s.Balance.Why)

		b.SetRebalance(nil)
		require.Nil(t, b.Snapshot().Balance)
	})
}

// A failed rebalance is retried later and delays nothing else.
func TestRebalance_WhenItFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 3)
		s := b.proposed()
		b.agents.Find("a0").Refuse(&tangramv1.Refusal{Code: tangramv1.Refusal_CODE_NO_MEMORY, Message: "no room"})
		goal := b.goal(&notes{}, layout.Expert, 2)
		goal.Rebalance = s.Balance
		require.True(t, b.Begin(goal))
		s = b.until(func(s Snapshot) bool { return s.RebalanceFailed != nil })
		require.ErrorContains(t, s.RebalanceFailed, "no room")
		require.NoError(t, s.Failed)
		require.False(t, b.Begin(goal), "not before its pause is over")
		b.agents.Find("a0").Refuse(nil)
		b.wide()
		require.Error(t, b.Snapshot().RebalanceFailed)
		b.agents.Route(slices.Repeat([]uint64{20}, len(b.agents.Skew())))
		b.until(func(s Snapshot) bool { return s.RebalanceFailed == nil }) // no move pays now: no failure
	})
}

func TestNewIntentClearsFailedRebalance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 2)
		s := b.proposed()
		b.agents.Find("a0").Refuse(&tangramv1.Refusal{Code: tangramv1.Refusal_CODE_NO_MEMORY, Message: "no room"})
		goal := b.goal(&notes{}, layout.Expert, 2)
		goal.Rebalance = s.Balance
		require.True(t, b.Begin(goal))
		b.until(func(s Snapshot) bool { return s.RebalanceFailed != nil })
		b.Intend("something else")
		require.NoError(t, b.Snapshot().RebalanceFailed)
	})
}

// No proposal is made while the world is broken, or for an older layout.
func TestRebalanceProposal_WhenLayoutChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 3)
		s := b.proposed()
		was := s.Balance
		b.wide()
		s = b.until(func(s Snapshot) bool { return s.Balance != nil && s.Balance.Outcome == balance.Move })
		require.NotEqual(t, was.Layout, s.Balance.Layout)
		require.Len(t, s.Balance.Decision.Placement[0], 3)
		b.agents.Find("a1").Deaf(true)
		b.until(func(s Snapshot) bool { return len(s.Errors) > 0 })
		at := b.Snapshot().Balance.At
		time.Sleep(100 * time.Millisecond)
		require.WithinDuration(t, at, b.Snapshot().Balance.At, 60*time.Millisecond, "who does not answer is not counted")
	})
}
