package driver

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Tests the pure rules that read the agents' reports, each with small examples.

func wordGeometry() *tangramv1.Geometry {
	return &tangramv1.Geometry{Model: "test", Layers: 1, Hidden: 16, MoeInner: 32, Experts: 4, TopK: 1, QueryHeads: 4, KvHeads: 4, HeadDim: 8,
		GranuleRows: 8, GranuleBytes: 768, Dtype: tangramv1.DType_DTYPE_BF16, PageBytes: 4096, DenseBytes: 10000, KvHeadTokenBytes: 64,
		SlabFormat: tangramv1.SlabFormat_SLAB_FORMAT_GRANULE_MAJOR, MoeLayers: []uint32{0}}
}

func layoutOf(epoch uint64, members ...string) *tangramv1.Layout {
	out := &tangramv1.Layout{World: "w", Epoch: epoch}
	for _, id := range members {
		out.Members = append(out.Members, &tangramv1.Member{Id: id})
	}
	return out
}

// says returns an agent with these ranks, all in the layout and with an engine.
func says(l *tangramv1.Layout, ids ...string) *tangramv1.StatusResponse {
	s := &tangramv1.StatusResponse{World: "w", Geometry: wordGeometry(), Revision: "r1", Address: &tangramv1.PeerAddress{Agent: "at " + ids[0]},
		Layout: l, Epoch: l.GetEpoch(), LayoutHash: []byte(fmt.Sprint("hash ", l.GetEpoch()))}
	for _, id := range ids {
		s.Ranks = append(s.Ranks, &tangramv1.RankStatus{Member: &tangramv1.Member{Id: id}, InWorld: l != nil,
			Engine: &tangramv1.EngineStatus{Attached: true}, Transition: &tangramv1.TransitionStatus{Phase: tangramv1.Phase_PHASE_IDLE}})
	}
	return s
}

func in(s *tangramv1.StatusResponse, attempt, target uint64, phase tangramv1.Phase) *tangramv1.StatusResponse {
	for _, r := range s.Ranks {
		r.Transition = &tangramv1.TransitionStatus{Attempt: attempt, TargetEpoch: target, Phase: phase, TargetHash: []byte(fmt.Sprint("hash ", target))}
	}
	return s
}

// out removes all ranks from the layout.
func out(s *tangramv1.StatusResponse) *tangramv1.StatusResponse {
	for _, r := range s.Ranks {
		r.InWorld = false
	}
	return s
}

func stopped(s *tangramv1.StatusResponse) *tangramv1.StatusResponse {
	for _, r := range s.Ranks {
		r.Engine.Stopped = true
	}
	return s
}

// truthOf returns the world view of these agents; nil does not answer.
func truthOf(t *testing.T, record Membership, agents ...*tangramv1.StatusResponse) *truth {
	t.Helper()
	errs := make([]error, len(agents))
	for i, a := range agents {
		if a == nil {
			errs[i] = fmt.Errorf("agent %d is silent", i)
		}
	}
	truth, err := newTruth("w", record, nil, agents, errs)
	require.NoError(t, err)
	return truth
}

// The active layout is that of the highest epoch. The one before is kept while a member has it.
func TestActiveLayout(t *testing.T) {
	four, five := layoutOf(4, "a", "b", "c"), layoutOf(5, "a", "b", "c")
	truth := truthOf(t, Membership{Epoch: 4}, says(four, "a"), says(five, "b"), says(four, "c"))
	require.Same(t, five, truth.layout)
	require.Same(t, four, truth.older)
	require.Equal(t, []byte("hash 5"), truth.hash)
	require.EqualValues(t, 5, truth.epoch())
	truth = truthOf(t, Membership{Epoch: 4}, says(layoutOf(3, "a"), "a"), says(five, "b"))
	require.Nil(t, truth.older, "who is below the record is not believed")
	truth = truthOf(t, Membership{Epoch: 3}, says(layoutOf(3, "a"), "a"), says(five, "b"))
	require.Nil(t, truth.older, "two epochs below is not the one before")
	truth = truthOf(t, Membership{Epoch: 4}, says(four, "a"), in(out(says(five, "z")), 9, 5, tangramv1.Phase_PHASE_FLIPPED))
	require.Same(t, five, truth.layout, "who left with the flip tells of it")
	require.Same(t, four, truth.older)

	other := func(l *tangramv1.Layout, id string) *tangramv1.StatusResponse {
		s := says(l, id)
		s.LayoutHash = []byte("other")
		return s
	}
	for name, agents := range map[string][]*tangramv1.StatusResponse{
		"agents disagree about epoch 5: layouts": {says(five, "a"), other(five, "b")},
		"agents disagree about epoch 4: layouts": {says(four, "a"), other(four, "b"), says(five, "c")},
	} {
		_, err := newTruth("w", Membership{Epoch: 4}, nil, agents, make([]error, len(agents)))
		require.ErrorContains(t, err, name)
		require.ErrorContains(t, err, "a world has only one layout")
	}
	truth = truthOf(t, Membership{Epoch: 4, Fence: &Fence{FromEpoch: 4, Epoch: 4, Survivors: []string{"a"}}}, says(four, "a"), other(four, "b"))
	require.NotNil(t, truth.layout, "who is not believed contradicts nobody")
}

// Agents of another world or model are set aside, and named.
func TestForeignAgentsAreIgnoredAndNamed(t *testing.T) {
	_, err := newTruth("w", Membership{}, nil, nil, nil)
	require.ErrorContains(t, err, `world "w" has no agents`)
	_, err = newTruth("w", Membership{}, nil, []*tangramv1.StatusResponse{nil}, []error{errors.New("refused")})
	require.ErrorContains(t, err, "query the agents: refused")
	strange := says(layoutOf(9, "b"), "b")
	strange.World = "v"
	truth := truthOf(t, Membership{}, says(nil, "a"), strange)
	require.Nil(t, truth.layout)
	require.ErrorContains(t, truth.odd[0], `agent at b is of world "v", not "w"`)
	require.Nil(t, truth.agents[1])

	another := func(change func(*tangramv1.StatusResponse), l *tangramv1.Layout, id string) *tangramv1.StatusResponse {
		s := says(l, id)
		change(s)
		return s
	}
	larger := func(s *tangramv1.StatusResponse) { s.Geometry.Experts = 8 }
	newer := func(s *tangramv1.StatusResponse) { s.Revision = "r2" }
	even := func(s *tangramv1.StatusResponse) { s.Geometry.EvenShardsOnly = true }
	mindless := func(s *tangramv1.StatusResponse) { s.Geometry = nil }
	truth = truthOf(t, Membership{}, says(nil, "a"), another(larger, nil, "b"), another(newer, nil, "c"), another(mindless, nil, "d"), says(nil, "e"))
	require.Len(t, truth.odd, 3)
	require.ErrorContains(t, truth.odd[0], "agents at b and at a read different models")
	require.ErrorContains(t, truth.odd[1], `agent at c reads revision "r2", but agent at a reads "r1"`)
	require.ErrorContains(t, truth.odd[2], "agents at d and at a read different models")
	require.Equal(t, []string{"a", "e"}, truth.order)
	require.Equal(t, "r1", truth.revision)
	truth = truthOf(t, Membership{}, says(nil, "a"), another(larger, layoutOf(1, "b"), "b"), another(larger, layoutOf(1, "c"), "c"))
	require.EqualValues(t, 8, truth.view.Proto.Experts, "who is in the world says which model it is")
	require.Len(t, truth.odd, 1)
	truth = truthOf(t, Membership{}, another(larger, layoutOf(1, "b"), "b"), another(newer, layoutOf(1, "c"), "c"))
	require.EqualValues(t, 8, truth.view.Proto.Experts, "the first that is in the world")
	truth = truthOf(t, Membership{}, says(nil, "a"), another(func(s *tangramv1.StatusResponse) { newer(s); even(s) }, nil, "b"))
	require.False(t, truth.view.Proto.EvenShardsOnly, "who is set aside binds nobody")
	truth = truthOf(t, Membership{}, nil, says(nil, "a"), another(even, nil, "b"), says(nil, "c"))
	require.Empty(t, truth.odd)
	require.True(t, truth.view.Proto.EvenShardsOnly, "one that takes even shards only binds all")
	truth = truthOf(t, Membership{}, another(even, nil, "b"), says(nil, "c"))
	require.True(t, truth.view.Proto.EvenShardsOnly)
	_, err = newTruth("w", Membership{}, nil, []*tangramv1.StatusResponse{another(mindless, nil, "a")}, []error{nil})
	require.ErrorContains(t, err, "agent at a reports no geometry")
	_, err = newTruth("w", Membership{}, nil, []*tangramv1.StatusResponse{another(func(s *tangramv1.StatusResponse) { s.Geometry.Experts = 0 }, nil, "a")}, []error{nil})
	require.ErrorContains(t, err, "geometry of the checkpoint: ")
	_, err = newTruth("w", Membership{}, nil, []*tangramv1.StatusResponse{says(nil, "a"), says(nil, "a")}, make([]error, 2))
	require.ErrorContains(t, err, "two agents report that they are member a")
}

// Members come first, by rank. Then come possible joiners, those with an engine first, and never outcasts.
func TestMemberOrder(t *testing.T) {
	away := says(nil, "j")
	away.Ranks[0].Engine.Attached = false
	record := Membership{Epoch: 4, Fence: &Fence{FromEpoch: 3, Epoch: 3, Survivors: []string{"a", "b"}, Lost: []Lost{{Member: "x"}}}, Ended: []string{"y"}}
	truth := truthOf(t, record, away, says(nil, "k"), says(layoutOf(4, "b", "a"), "a"), says(layoutOf(4, "b", "a"), "b"), says(nil, "x"), says(nil, "y"),
		says(layoutOf(2, "z"), "z"))
	require.Equal(t, []string{"b", "a", "k", "j"}, truth.order)
	for _, c := range []struct {
		want  Wanted
		ids   []string
		wrong string
	}{
		{Wanted{Ranks: 3}, []string{"b", "a", "k"}, ""},
		{Wanted{Ranks: 4}, []string{"b", "a", "k", "j"}, ""},
		{Wanted{Ranks: 5}, nil, "5 ranks are desired, but the agents have 4; start more pods"},
		{Wanted{Members: []string{"k", "b"}}, []string{"k", "b"}, ""},
		{Wanted{Members: []string{"k", "k"}}, nil, "member k is listed twice"},
		{Wanted{Members: []string{"nobody"}}, nil, "member nobody is desired, but no agent has this member"},
		{Wanted{Members: []string{"x"}}, nil, "member x is desired, but a fence removed this member permanently"},
	} {
		ids, err := truth.choose(c.want)
		require.Equal(t, c.ids, ids)
		if c.wrong != "" {
			require.ErrorContains(t, err, c.wrong)
		}
	}
	require.Equal(t, []string{"j"}, truth.withoutEngine([]string{"k", "j", "j"}))
	require.Equal(t, []string{"nobody"}, truth.withoutEngine([]string{"nobody"}))
	require.Empty(t, truth.withoutEngine(nil))
	require.Equal(t, []int{2, 3}, truth.agentsOf(truth.layout))
	require.Equal(t, []int{0, 3}, truth.agentsOf(layoutOf(5, "b", "nobody"), nil, layoutOf(6, "j")))
	require.Empty(t, truth.agentsOf(layoutOf(5, "nobody")))
	truth.ranks["a"].status.Engine.Attached = false
	require.Equal(t, []string{"a"}, truth.withoutEngine([]string{"k"}), "a member of the layout in force")
	joiners, others := truth.joinersFirst([]int{0, 2, 1, 3})
	require.Equal(t, []int{0, 1}, joiners)
	require.Equal(t, []int{2, 3}, others)
	require.Zero(t, truth.highestAttempt())
	truth.agents[1].HighestAttempt, truth.agents[2].HighestAttempt = 7, 3
	require.EqualValues(t, 7, truth.highestAttempt())
}

// A member of a layout that has left it is named once.
func TestMemberOrder_WhenMemberLeft(t *testing.T) {
	l := layoutOf(4, "a", "b", "c")
	require.Equal(t, []string{"a", "b", "c"}, truthOf(t, Membership{}, out(says(l, "a")), says(l, "b"), out(says(l, "c"))).order)
}

// An agent in the world gets a delta, others the whole layout, and each its own parts.
func TestPrepareRequestOfAgent(t *testing.T) {
	l := layoutOf(4, "a", "b")
	truth := truthOf(t, Membership{Epoch: 4}, says(l, "a"), says(l, "b"), says(nil, "j"))
	target, delta := layoutOf(5, "a", "b", "j"), &tangramv1.LayoutDelta{MembersChanged: true}
	parts := []*tangramv1.RankPart{{Rank: 0, Member: "a"}, {Rank: 1, Member: "b"}, {Rank: 2, Member: "j"}, {Rank: 3, Member: "nobody"}}
	flip := &tangramv1.Flip{Kind: tangramv1.FlipKind_FLIP_KIND_JOIN, Epoch: 5, TargetHash: []byte("hash 5"), Delta: delta, Parts: parts}
	for i, want := range parts[:3] {
		q := truth.prepareFor(i, &tangramv1.Header{World: "w"}, flip, target)
		require.Equal(t, []*tangramv1.RankPart{want}, q.Parts)
		if i < 2 {
			require.Same(t, delta, q.GetDelta())
		} else {
			require.Same(t, target, q.GetLayout())
		}
		require.Len(t, q.Peers, 3)
		require.Equal(t, "at j", q.Peers[2].Agent)
	}
	truth = truthOf(t, Membership{Epoch: 4}, says(nil, "j"), says(l, "b"))
	require.Same(t, target, truth.prepareFor(0, nil, flip, target).GetLayout(), "it is not in the world because a member is missing")
	truth = truthOf(t, Membership{Epoch: 4}, says(l, "a"), says(l, "b"), says(nil, "j"))
	flip.Kind = tangramv1.FlipKind_FLIP_KIND_FIRST
	require.Same(t, target, truth.prepareFor(0, nil, flip, target).GetLayout())
}

// The trouble of a world, whether it is certain, and lost members.
func TestTroubleAndCertainty(t *testing.T) {
	l := layoutOf(4, "p0/0/1", "p1/0/1")
	fine := func(id string) *tangramv1.StatusResponse { return says(l, id) }
	silent := errors.New("connection refused")
	for name, c := range map[string]struct {
		other             *tangramv1.StatusResponse // besides p0/0/1; nil: see err
		err               error                     // nil, and no other: no such agent
		pods              []string
		trouble           string
		evident, complete bool // complete: there are no other agents
		gone              bool // p1/0/1
	}{
		"all is well":                       {other: fine("p1/0/1"), complete: true, gone: true},
		"no engine":                         {other: func() *tangramv1.StatusResponse { s := fine("p1/0/1"); s.Ranks[0].Engine.Attached = false; return s }(), trouble: "the engine of member p1/0/1 is detached", evident: true},
		"it stands still":                   {other: stopped(fine("p1/0/1")), trouble: "the engine of member p1/0/1 is stopped", evident: true},
		"it is silent":                      {err: silent, trouble: "member p1/0/1 of epoch 4 is unresponsive: connection refused", complete: true},
		"it is silent, of the pod":          {err: silent, pods: []string{"p0", "p1"}, trouble: "is unresponsive", complete: true},
		"another is silent":                 {err: silent, pods: []string{"p0", "p2"}, trouble: "is unresponsive", complete: true, evident: true},
		"another, and there may be more":    {err: silent, pods: []string{"p0", "p2"}, trouble: "is unresponsive"},
		"nobody knows which is silent":      {err: silent, pods: []string{"p0", ""}, trouble: "is unresponsive", complete: true},
		"no agent has it":                   {trouble: "no agent has this member", complete: true, evident: true, gone: true},
		"no agent that is known has it":     {trouble: "no agent has this member"},
		"its pod has it no more":            {other: says(nil, "p1/0/2"), trouble: "no agent has this member", evident: true, gone: true},
		"its pod has another rank":          {other: says(nil, "p1/1/1"), trouble: "no agent has this member", evident: true},
		"it is at the epoch before":         {other: says(layoutOf(3, "p0/0/1", "p1/0/1"), "p1/0/1"), trouble: "member p1/0/1 is at epoch 3, but others are at epoch 4"},
		"it is about to be at this one":     {other: in(says(layoutOf(3, "p0/0/1", "p1/0/1"), "p1/0/1"), 9, 4, tangramv1.Phase_PHASE_PERMITTED)},
		"it left by no flip":                {other: out(fine("p1/0/1")), trouble: "member p1/0/1 is at epoch 0, but others are at epoch 4", evident: true},
		"it left with a flip to come":       {other: in(out(fine("p1/0/1")), 9, 5, tangramv1.Phase_PHASE_FLIPPED), trouble: "member p1/0/1 is at epoch 0"},
		"it left with the flip to this one": {other: in(out(fine("p1/0/1")), 9, 4, tangramv1.Phase_PHASE_FLIPPED), evident: true},
	} {
		t.Run(name, func(t *testing.T) {
			agents, errs := []*tangramv1.StatusResponse{fine("p0/0/1")}, []error{nil}
			if c.other != nil || c.err != nil {
				agents, errs = append(agents, c.other), append(errs, c.err)
			}
			truth, err := newTruth("w", Membership{Epoch: 3}, c.pods, agents, errs)
			require.NoError(t, err)
			if c.trouble == "" {
				require.NoError(t, truth.trouble())
			} else {
				require.ErrorIs(t, truth.trouble(), ErrNeedsRepair)
				require.ErrorContains(t, truth.trouble(), c.trouble)
			}
			require.Equal(t, c.evident, truth.evident(c.complete))
			if c.trouble != "" && truth.ranks["p1/0/1"].status == nil {
				require.Equal(t, c.gone, truth.gone("p1/0/1", c.complete))
				e := truth.evidence("p1/0/1", c.complete)
				require.Equal(t, evidence{id: "p1/0/1", why: truth.whyMissing().Error(), gone: c.gone}, e)
			}
		})
	}
	// No member has a layout.
	nobody := truthOf(t, Membership{}, says(nil, "j"))
	require.NoError(t, nobody.trouble(), "no world yet")
	record := Membership{Epoch: 4, Members: []string{"p0/0/1", "p1/0/1"}}
	nobody = truthOf(t, record, says(nil, "p2/0/1"))
	require.ErrorContains(t, nobody.trouble(), "the record has epoch 4 with 2 members, but no responding agent is one of them: members: p0/0/1, p1/0/1")
	require.True(t, nobody.evident(true))
	require.False(t, nobody.evident(false), "they may be where nobody looks")
	nobody = truthOf(t, record, says(nil, "p0/0/2"), says(nil, "p1/0/2"))
	require.True(t, nobody.evident(false), "their pods are without them")
	nobody = truthOf(t, record, says(nil, "p0/0/2"), nil)
	require.ErrorContains(t, nobody.trouble(), "agent 1 is silent")
	require.False(t, nobody.evident(true))
}

// No member is gone while an agent does not answer. A name that cannot be parsed proves nothing.
func TestMemberGone(t *testing.T) {
	truth := truthOf(t, Membership{}, nil, says(nil, "p0/0/2"))
	require.True(t, truth.gone("p0/0/1", true))
	require.False(t, truth.gone("p1/0/1", true))
	truth = truthOf(t, Membership{}, says(nil, "nonsense"), says(nil, "p0/0/2"))
	require.False(t, truth.gone("nonsense too", false))
	require.True(t, truth.gone("nonsense too", true))
	require.False(t, truth.gone("p1/0/1", false))
}

// The scene has the active layout and the one before, else the record's layout; and the fence that applies to it.
func TestFenceInput(t *testing.T) {
	four, five := layoutOf(4, "a", "b", "c"), layoutOf(5, "a", "b")
	truth := truthOf(t, Membership{Epoch: 4}, says(four, "a"), stopped(says(five, "b")), says(four, "c"))
	truth.agents[1].Ranks[0].Engine.Unreachable = []uint32{0, 2}
	s := truth.scene(true)
	require.EqualValues(t, 5, s.epoch)
	require.Equal(t, []string{"a", "b"}, s.newest)
	require.Equal(t, []string{"a", "b", "c"}, s.older)
	require.Len(t, s.members, 3)
	require.Equal(t, evidence{id: "b", answers: true, epoch: 5, attached: true, stopped: true, phase: tangramv1.Phase_PHASE_IDLE, unreachable: []string{"a"}},
		s.members["b"], "a rank that its layout does not have is nobody")
	require.EqualValues(t, 4, s.members["a"].epoch)
	require.Nil(t, s.fence)

	record := Membership{Epoch: 4, Members: []string{"a", "b"}}
	s = truthOf(t, record, says(nil, "j")).scene(true)
	require.EqualValues(t, 4, s.epoch)
	require.Equal(t, []string{"a", "b"}, s.newest)

	fence := func(from, epoch uint64, outcome string, survivors ...string) Membership {
		return Membership{Epoch: epoch, Fence: &Fence{FromEpoch: from, Epoch: epoch, Outcome: outcome, Survivors: survivors, Lost: []Lost{{Member: "c"}}}}
	}
	require.NotNil(t, truthOf(t, fence(4, 4, "stay", "a", "b"), says(four, "a"), says(four, "b")).scene(true).fence)
	require.Nil(t, truthOf(t, fence(3, 3, "stay", "a", "b"), says(four, "a"), says(four, "b")).scene(true).fence, "it is of before")
	require.NotNil(t, truthOf(t, fence(4, 5, "forward", "a", "b", "c"), says(four, "a"), says(five, "b"), says(four, "c")).scene(true).fence, "of the epoch before the newest")
	require.NotNil(t, truthOf(t, fence(4, 4, "stay", "a", "b"), says(four, "a"), says(five, "b")).scene(true).fence, "a flip after it, not complete")
	require.Nil(t, truthOf(t, Membership{Fence: &Fence{FromEpoch: 4, Epoch: 4}}, says(four, "a")).scene(true).fence, "it ended the world before")
	s = truthOf(t, fence(4, 5, "forward", "a", "b"), says(five, "a"), says(five, "b")).scene(true)
	require.NotNil(t, s.fence)
	require.EqualValues(t, 5, s.epoch)
	require.Empty(t, s.older, "all are there by now")
	require.EqualValues(t, 4, truthOf(t, fence(4, 5, "stay", "a", "b"), says(four, "a"), says(four, "b")).scene(true).epoch)
	// The fence decided the next layout as the outcome, but no answering member has it.
	s = truthOf(t, fence(4, 5, "forward", "a", "b"), says(four, "a"), says(four, "b")).scene(true)
	require.EqualValues(t, 5, s.epoch)
	require.Equal(t, []string{"a", "b", "c"}, s.newest)
	require.Equal(t, []string{"a", "b", "c"}, s.older)
	s = truthOf(t, fence(4, 4, "stay", "a", "b"), says(four, "a"), says(four, "b")).scene(true)
	require.EqualValues(t, 4, s.epoch)
	require.Empty(t, s.older)
}

// The attempt of a ruling is the one that brought members to the newest epoch, else that of a fence, else the highest
// unfinished one.
func TestFenceDecisionAttempt(t *testing.T) {
	four, five := layoutOf(4, "a", "b", "c"), layoutOf(5, "a", "b", "c")
	staged := func(id string, attempt uint64) *tangramv1.StatusResponse {
		return in(says(four, id), attempt, 5, tangramv1.Phase_PHASE_STAGED)
	}
	flipped := func(id string, attempt, target uint64) *tangramv1.StatusResponse {
		return in(says(five, id), attempt, target, tangramv1.Phase_PHASE_FLIPPED)
	}
	for name, c := range map[string]struct {
		record Membership
		agents []*tangramv1.StatusResponse
		want   uint64
	}{
		"nothing is under way":              {Membership{Epoch: 4}, []*tangramv1.StatusResponse{says(four, "a"), nil}, 0},
		"the highest that is unfinished":    {Membership{Epoch: 4}, []*tangramv1.StatusResponse{staged("a", 7), staged("b", 9), staged("c", 8)}, 9},
		"not one that is over":              {Membership{Epoch: 4}, []*tangramv1.StatusResponse{staged("a", 7), in(says(four, "b"), 9, 5, tangramv1.Phase_PHASE_IDLE), nil}, 7},
		"the one that flipped":              {Membership{Epoch: 4}, []*tangramv1.StatusResponse{flipped("a", 7, 5), staged("b", 9), nil}, 7},
		"of two that flipped the higher":    {Membership{Epoch: 4}, []*tangramv1.StatusResponse{flipped("a", 8, 5), flipped("b", 7, 5), staged("c", 9)}, 8},
		"one that flipped to another epoch": {Membership{Epoch: 4}, []*tangramv1.StatusResponse{flipped("a", 7, 6), staged("b", 9), nil}, 9},
		"a fence has said it": {Membership{Epoch: 5, Fence: &Fence{FromEpoch: 4, Epoch: 5, Outcome: "forward", Attempt: 6, Survivors: []string{"b", "c"}}},
			[]*tangramv1.StatusResponse{nil, staged("b", 9), staged("c", 9)}, 6},
		"a fence that stays": {Membership{Epoch: 4, Fence: &Fence{FromEpoch: 4, Epoch: 4, Outcome: "stay", Attempt: 6, Survivors: []string{"b", "c"}}},
			[]*tangramv1.StatusResponse{nil, staged("b", 9), staged("c", 8)}, 9},
		"of who is not a member": {Membership{Epoch: 4}, []*tangramv1.StatusResponse{staged("a", 7), in(says(nil, "j"), 9, 5, tangramv1.Phase_PHASE_STAGED)}, 7},
	} {
		truth := truthOf(t, c.record, c.agents...)
		standOn := uint64(4)
		if c.record.Fence != nil {
			standOn = c.record.Fence.Epoch
		}
		require.Equal(t, c.want, truth.attemptOf(ruling{fromEpoch: 4, standOn: standOn}), name)
	}
	forward := Membership{Epoch: 5, Fence: &Fence{FromEpoch: 4, Epoch: 5, Outcome: "forward", Attempt: 6, Survivors: []string{"b", "c"}}}
	require.EqualValues(t, 9, truthOf(t, forward, nil, staged("b", 9)).attemptOf(ruling{fromEpoch: 4, standOn: 4}), "a ruling that is not the fence's")
	require.False(t, unfinished(nil))
	for phase, want := range map[tangramv1.Phase]bool{tangramv1.Phase_PHASE_IDLE: false, tangramv1.Phase_PHASE_PREPARED: true, tangramv1.Phase_PHASE_STAGED: true,
		tangramv1.Phase_PHASE_PERMITTED: true, tangramv1.Phase_PHASE_FLIPPED: false, tangramv1.Phase_PHASE_FAILED: true} {
		require.Equal(t, want, unfinished(in(says(four, "a"), 1, 5, phase).Ranks[0]), "%v", phase)
	}
}

// The hash of the survivors' layout after a ruling comes from an agent, else from the fence.
func TestFenceDecisionLayoutHash(t *testing.T) {
	truth := truthOf(t, Membership{Epoch: 4}, says(layoutOf(4, "a", "b"), "a"), says(layoutOf(5, "a", "b"), "b"))
	newest, err := truth.hashOf(ruling{standOn: 5})
	require.NoError(t, err)
	older, err := truth.hashOf(ruling{standOn: 4})
	require.NoError(t, err)
	require.NotEqual(t, newest, older)
	require.NotEmpty(t, older)
	_, err = truth.hashOf(ruling{standOn: 6})
	require.EqualError(t, err, "no agent reports the layout of epoch 6")
	truth.record.Fence, truth.older = &Fence{Epoch: 6, Hash: "told"}, nil
	told, err := truth.hashOf(ruling{standOn: 6})
	require.NoError(t, err)
	require.Equal(t, "told", told)
	_, err = truth.hashOf(ruling{standOn: 7})
	require.Error(t, err)
}

// Ranks that must be released: removed, of an ended world, or with a layout of no world and no open attempt.
func TestRanksToRelease(t *testing.T) {
	l := layoutOf(4, "a")
	record := Membership{Epoch: 4, Fence: &Fence{FromEpoch: 3, Epoch: 3, Survivors: []string{"a"}, Lost: []Lost{{Member: "x"}, {Member: "a"}}}, Ended: []string{"y"}}
	truth := truthOf(t, record, says(l, "a"), says(nil, "x"), says(nil, "y"), says(nil, "j"), says(layoutOf(2, "z"), "z"),
		in(says(layoutOf(2, "u"), "u"), 9, 3, tangramv1.Phase_PHASE_STAGED))
	for i, want := range []bool{false, true, true, false, true, true} {
		require.Equal(t, want, truth.mustGo(i, truth.agents[i].Ranks[0]), "agent %d", i)
	}
	// Its agent is believed because of another rank. This rank may be leaving, unless it is stopped.
	mixed := func(change func(*tangramv1.RankStatus)) bool {
		s := says(layoutOf(4, "a", "v"), "a", "v")
		change(s.Ranks[1])
		truth := truthOf(t, Membership{Epoch: 4}, s)
		truth.layout = l
		return truth.mustGo(0, s.Ranks[1])
	}
	staged := &tangramv1.TransitionStatus{Phase: tangramv1.Phase_PHASE_STAGED}
	require.True(t, mixed(func(*tangramv1.RankStatus) {}))
	require.False(t, mixed(func(r *tangramv1.RankStatus) { r.Transition = staged }))
	require.True(t, mixed(func(r *tangramv1.RankStatus) { r.Transition = staged; r.Engine.Stopped = true }))
	require.False(t, mixed(func(r *tangramv1.RankStatus) { r.InWorld = false }))
	// Removed by a fence before the last one: its agent continued without it (tangram-simulate-agents --seed 22078).
	require.True(t, mixed(func(r *tangramv1.RankStatus) { r.InWorld = false; r.Engine.Stopped = true }))
}

// An attempt is open while a survivor is in it and does not hold.
func TestOpenAttempt(t *testing.T) {
	l := layoutOf(4, "a", "b")
	r := ruling{survivors: []string{"a", "b"}}
	require.False(t, truthOf(t, Membership{}, says(l, "a"), says(l, "b")).open(r))
	truth := truthOf(t, Membership{}, says(l, "a"), in(says(l, "b"), 9, 5, tangramv1.Phase_PHASE_STAGED))
	require.True(t, truth.open(r))
	require.False(t, truth.open(ruling{survivors: []string{"a"}}))
	truth.ranks["b"].status.Transition.Held = true
	require.False(t, truth.open(r))
}
