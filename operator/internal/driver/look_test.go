package driver

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/internal/store"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// told is an agent with answers set by a test.
type told struct {
	Agent
	change func(*tangramv1.StatusResponse) error
}

func (a told) Status(ctx context.Context, world string) (*tangramv1.StatusResponse, error) {
	s, err := a.Agent.Status(ctx, world)
	if err != nil {
		return nil, err
	}
	s = proto.CloneOf(s)
	if err := a.change(s); err != nil {
		return nil, err
	}
	return s, nil
}

// Distinguishes a broken world from missing answers. The world has three members; the second agent differs from before.
func TestLookDetectsBrokenWorld(t *testing.T) {
	silent := func(*tangramv1.StatusResponse) error { return errors.New("no answer") }
	rank := func(change func(*tangramv1.RankStatus)) func(*tangramv1.StatusResponse) error {
		return func(s *tangramv1.StatusResponse) error { change(s.Ranks[0]); return nil }
	}
	leaves := func(target uint64) func(*tangramv1.StatusResponse) error {
		return rank(func(r *tangramv1.RankStatus) {
			r.InWorld, r.Transition.TargetEpoch, r.Transition.Phase = false, target, tangramv1.Phase_PHASE_FLIPPED
		})
	}
	for name, c := range map[string]struct {
		agent           func(*tangramv1.StatusResponse) error // nil: it is not among the agents
		pods, partial   bool                                  // pods: UIDs are known; partial: other agents exist
		trouble, broken bool
	}{
		"as ever":                        {agent: func(*tangramv1.StatusResponse) error { return nil }},
		"stands still":                   {agent: rank(func(r *tangramv1.RankStatus) { r.Engine.Stopped = true }), trouble: true, broken: true},
		"no engine":                      {agent: rank(func(r *tangramv1.RankStatus) { r.Engine.Attached = false }), trouble: true, broken: true},
		"no engine, and others outside":  {agent: rank(func(r *tangramv1.RankStatus) { r.Engine.Attached = false }), partial: true, trouble: true, broken: true},
		"silent":                         {agent: silent, trouble: true},
		"silent, of a pod that is known": {agent: silent, pods: true, trouble: true},
		"gone":                           {trouble: true, broken: true},
		"gone, its pod known":            {pods: true, trouble: true, broken: true},
		"gone, or among others outside":  {partial: true, trouble: true},
		"back under another name": {agent: rank(func(r *tangramv1.RankStatus) {
			r.Member.Id, r.InWorld = "u1/0/2", false
		}), partial: true, trouble: true, broken: true},
		"leaves by a flip to come":    {agent: leaves(2), trouble: true},
		"flipped to this very layout": {agent: leaves(1)}, // it is about to enter it
		"out of it by no flip":        {agent: leaves(0), trouble: true, broken: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, w := setup(t, 3)
				_, err := d.Apply(t.Context(), expert(3))
				require.NoError(t, err)
				d.Complete = !c.partial
				if c.pods {
					d.Pods = []string{"u0", "u1", "u2"}
				}
				if c.agent == nil {
					d.Agents = slices.Delete(d.Agents, 1, 2)
					if c.pods {
						d.Pods = slices.Delete(d.Pods, 1, 2)
					}
				} else {
					d.Agents[1] = told{d.Agents[1], c.agent}
				}
				look, err := d.Look(t.Context())
				require.NoError(t, err)
				require.True(t, proto.Equal(w.Layout(), look.Layout))
				require.Equal(t, c.trouble, look.Trouble != nil, "%v", look.Trouble)
				require.Equal(t, c.broken, look.Broken, "%v", look.Trouble)
			})
		})
	}
}

// If pods are known, a silent agent of another pod says nothing about a dead member.
func TestLook_WhenOtherAgentUnresponsive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 3)
		_, err := d.Apply(t.Context(), expert(2))
		require.NoError(t, err)
		d.Complete, d.Agents = true, []Agent{d.Agents[0], d.Agents[2]}
		w.agents[2].Deaf(true)
		look, err := d.Look(t.Context())
		require.NoError(t, err)
		require.False(t, look.Broken, "it may be the silent one's")
		d.Pods = []string{"u0", "u2"}
		look, err = d.Look(t.Context())
		require.NoError(t, err)
		require.True(t, look.Broken)
	})
}

// unread is a store that cannot be read.
type unread struct{ store.Store }

func (unread) Get(context.Context, string) (store.Record, error) {
	return store.Record{}, errors.New("no such volume")
}

// With an error, Look returns the active layout.
func TestLookReturnsLayoutWithError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 2)
		_, err := d.Apply(t.Context(), expert(2))
		require.NoError(t, err)
		records := d.Store
		d.Store = unread{records}
		look, err := d.Look(t.Context())
		require.ErrorContains(t, err, "no such volume")
		require.True(t, proto.Equal(w.Layout(), look.Layout))
		require.NotEmpty(t, look.Hash)
		d.Store = records
		w.agents[0].Deaf(true)
		w.agents[1].Deaf(true)
		look, err = d.Look(t.Context())
		require.Error(t, err)
		require.Nil(t, look.Layout)
	})
}
