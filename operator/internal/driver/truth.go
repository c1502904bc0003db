package driver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// rankTruth is one rank as its agent reports it.
type rankTruth struct {
	agent  int // index of the agent
	status *tangramv1.RankStatus
}

// truth is the world view: the reports of the answering agents at one time, read against the membership record. It
// contains nothing from earlier queries.
type truth struct {
	agents   []*tangramv1.StatusResponse // by agent; nil: it does not answer
	errors   []error                     // by agent: why it does not answer
	odd      []error                     // why answering agents are set aside
	record   Membership                  // as it was before the query
	believed []bool                      // by agent: its layout is of this world
	pods     []string                    // by agent: the pod's UID; nil: not known
	told     map[string]bool             // by member: see stillness
	idle     map[string]bool             // by member: see stillness
	layout   *tangramv1.Layout           // of the highest epoch of a believed agent; nil: none
	hash     []byte                      // of layout
	older    *tangramv1.Layout           // of the epoch before, if a believed agent still has it
	ranks    map[string]rankTruth
	order    []string // member ids: of the layout by rank, then possible joiners by agent, those with an engine first
	view     *geometry.View
	revision string
}

// observe queries every agent (ask). With an error the view has at most the active layout, as far as it is known; nil:
// nothing. If agents contradict each other and the membership record has changed meanwhile, it queries again. Reports
// from before and after a fence contradict each other when read against the old record.
func (d *Driver) observe(ctx context.Context) (*truth, error) {
	record, err := d.membership(ctx) // read first: a fence is written only if the record is unchanged
	if err != nil {
		truth, _ := d.ask(ctx, Membership{})
		return truth, err
	}
	for {
		truth, err := d.ask(ctx, record)
		if err == nil || ctx.Err() != nil {
			return truth, err
		}
		now, reading := d.membership(ctx)
		if reading != nil || now.version == record.version {
			return truth, err
		}
		record = now
	}
}

// newTruth joins the agents' reports, or says where they contradict each other; then the view has at most the active
// layout. It is pure.
func newTruth(world string, record Membership, pods []string, agents []*tangramv1.StatusResponse, errs []error) (*truth, error) {
	t := &truth{agents: slices.Clone(agents), errors: slices.Clone(errs), record: record, believed: make([]bool, len(agents)),
		pods: pods, ranks: map[string]rankTruth{}}
	if len(agents) == 0 {
		return nil, fmt.Errorf("world %q has no agents", world)
	}
	for i, a := range t.agents {
		if a != nil && a.World != world {
			t.setAside(i, fmt.Errorf("agent %s is of world %q, not %q", a.GetAddress().GetAgent(), a.World, world))
		}
		t.believed[i] = record.believed(t.agents[i])
	}
	if err := t.readLayouts(); err != nil {
		return t, err
	}
	if err := t.readModel(); err != nil {
		return t, err
	}
	for i, a := range t.agents {
		for _, rank := range a.GetRanks() {
			if _, twice := t.ranks[rank.GetMember().GetId()]; twice {
				return t, fmt.Errorf("two agents report that they are member %s", rank.GetMember().GetId())
			}
			t.ranks[rank.GetMember().GetId()] = rankTruth{agent: i, status: rank}
		}
	}
	t.order = idsOf(t.layout)
	for _, attached := range []bool{true, false} {
		for _, a := range t.agents {
			for _, rank := range a.GetRanks() {
				if rank.GetEngine().GetAttached() == attached && layout.RankOf(t.layout, rank.Member.Id) < 0 && !t.outcast(rank) {
					t.order = append(t.order, rank.Member.Id)
				}
			}
		}
	}
	return t, nil
}

// setAside treats an agent whose reports are not about this world as one that does not answer.
func (t *truth) setAside(agent int, why error) {
	t.agents[agent], t.errors[agent], t.believed[agent] = nil, why, false
	t.odd = append(t.odd, why)
}

// readLayouts finds the active layout: the one of the highest epoch that a believed agent has, or that a leaver left
// with the flip to it. There is no other definition.
func (t *truth) readLayouts() error {
	var olderHash []byte
	for i, a := range t.agents {
		if (t.believed[i] || t.record.leftBy(a)) && a.Epoch > t.layout.GetEpoch() {
			t.layout, t.hash = a.Layout, a.LayoutHash
		}
	}
	for i, a := range t.agents {
		if !t.believed[i] {
			continue
		}
		if a.Epoch == t.epoch() && !bytes.Equal(a.LayoutHash, t.hash) {
			return fmt.Errorf("agents disagree about epoch %d: layouts %x and %x; a world has only one layout", a.Epoch, a.LayoutHash, t.hash)
		}
		if a.Epoch+1 == t.epoch() {
			if t.older != nil && !bytes.Equal(a.LayoutHash, olderHash) {
				return fmt.Errorf("agents disagree about epoch %d: layouts %x and %x; a world has only one layout", a.Epoch, a.LayoutHash, olderHash)
			}
			t.older, olderHash = a.Layout, a.LayoutHash
		}
	}
	return nil
}

// readModel takes geometry and revision from an agent of the world, else from the first that answers. It sets agents
// with another model aside.
func (t *truth) readModel() error {
	first := -1
	for i, a := range t.agents {
		if a != nil && (first < 0 || t.believed[i] && !t.believed[first]) {
			first = i
		}
	}
	if first < 0 {
		return fmt.Errorf("query the agents: %w", errors.Join(t.errors...))
	}
	reference := t.agents[first]
	if reference.Geometry == nil {
		return fmt.Errorf("agent %s reports no geometry", reference.GetAddress().GetAgent())
	}
	shape := proto.CloneOf(reference.Geometry)
	for i, a := range t.agents {
		if a == nil {
			continue
		}
		mine := proto.CloneOf(a.Geometry)
		if mine != nil {
			mine.EvenShardsOnly = shape.EvenShardsOnly
		}
		if !proto.Equal(shape, mine) {
			t.setAside(i, fmt.Errorf("agents %s and %s read different models: %v and %v", a.GetAddress().GetAgent(),
				reference.GetAddress().GetAgent(), a.Geometry, shape))
			continue
		}
		if a.Revision != reference.Revision {
			t.setAside(i, fmt.Errorf("agent %s reads revision %q, but agent %s reads %q", a.GetAddress().GetAgent(), a.Revision,
				reference.GetAddress().GetAgent(), reference.Revision))
			continue
		}
		shape.EvenShardsOnly = shape.EvenShardsOnly || a.Geometry.EvenShardsOnly
	}
	view, err := viewOf(shape)
	if err != nil {
		return fmt.Errorf("geometry of the checkpoint: %w", err)
	}
	t.view, t.revision = view, reference.Revision
	return nil
}

// outcast says that a rank outside the active layout cannot join under its name: a fence removed it, or it still has a
// layout of another world.
func (t *truth) outcast(rank *tangramv1.RankStatus) bool {
	id := rank.GetMember().GetId()
	if t.record.Fence.lost(id) || contains(t.record.Ended, id) {
		return true
	}
	return rank.GetInWorld()
}

// idsOf returns the member ids of a layout, by rank.
func idsOf(l *tangramv1.Layout) []string {
	out := make([]string, 0, len(l.GetMembers()))
	for _, m := range l.GetMembers() {
		out = append(out, m.Id)
	}
	return out
}

func (t *truth) epoch() uint64 { return t.layout.GetEpoch() }

// choose returns the members of the desired world.
func (t *truth) choose(want Wanted) ([]string, error) {
	if len(want.Members) == 0 {
		if want.Ranks > len(t.order) {
			return nil, errors.Join(fmt.Errorf("%d ranks are desired, but the agents have %d; start more pods", want.Ranks, len(t.order)),
				errors.Join(t.errors...))
		}
		return t.order[:want.Ranks], nil
	}
	seen := map[string]bool{}
	for _, id := range want.Members {
		if _, here := t.ranks[id]; !here {
			return nil, errors.Join(fmt.Errorf("member %s is desired, but no agent has this member", id), errors.Join(t.errors...))
		}
		if !contains(t.order, id) {
			return nil, fmt.Errorf("member %s is desired, but a fence removed this member permanently; its agent gets another name after its release", id)
		}
		if seen[id] {
			return nil, fmt.Errorf("member %s is listed twice", id)
		}
		seen[id] = true
	}
	return want.Members, nil
}

// withoutEngine returns the members of target or of the active layout whose engine is not attached.
func (t *truth) withoutEngine(target []string) []string {
	need := append([]string(nil), target...)
	for _, m := range t.layout.GetMembers() {
		need = append(need, m.Id)
	}
	var missing []string
	seen := map[string]bool{}
	for _, id := range need {
		if !seen[id] && !t.ranks[id].status.GetEngine().GetAttached() {
			missing = append(missing, id)
		}
		seen[id] = true
	}
	return missing
}

// after returns the view after a flip to the layout of this hash was retired, from the agents' latest stream messages.
// Those omit layouts and inventories; addresses, engines and ranks are current. It fails if a member of the layout has
// another one.
func (t *truth) after(l *tangramv1.Layout, hash []byte, latest map[int]*tangramv1.StatusResponse) (*truth, error) {
	next := *t
	next.layout, next.hash, next.older = l, hash, nil
	next.agents, next.errors, next.believed = slices.Clone(t.agents), slices.Clone(t.errors), slices.Clone(t.believed)
	next.ranks = maps.Clone(t.ranks)
	for i, s := range latest {
		for _, r := range t.agents[i].GetRanks() {
			delete(next.ranks, r.GetMember().GetId())
		}
		on := s.GetEpoch() == l.Epoch && bytes.Equal(s.GetLayoutHash(), hash)
		for _, r := range s.GetRanks() {
			id := r.GetMember().GetId()
			next.ranks[id] = rankTruth{agent: i, status: r}
			if layout.RankOf(l, id) >= 0 && !on {
				return nil, fmt.Errorf("%w: member %s is at epoch %d, layout %x, but others are at epoch %d, layout %x", ErrNeedsRepair, id, s.GetEpoch(),
					s.GetLayoutHash(), l.Epoch, hash)
			}
		}
		next.agents[i], next.errors[i], next.believed[i] = s, nil, on
	}
	return &next, nil
}

// agentsOf returns the answering agents that have a member of any of the layouts (nil: none), by index.
func (t *truth) agentsOf(layouts ...*tangramv1.Layout) []int {
	in := make([]bool, len(t.agents))
	for _, l := range layouts {
		for _, m := range l.GetMembers() {
			if r, here := t.ranks[m.Id]; here {
				in[r.agent] = true
			}
		}
	}
	var out []int
	for i, yes := range in {
		if yes {
			out = append(out, i)
		}
	}
	return out
}

// highestAttempt returns the highest attempt that any agent has seen.
func (t *truth) highestAttempt() uint64 {
	var high uint64
	for _, a := range t.agents {
		high = max(high, a.GetHighestAttempt())
	}
	return high
}

// peers returns the addresses of a target layout's members, by rank.
func (t *truth) peers(target *tangramv1.Layout) []*tangramv1.PeerAddress {
	out := make([]*tangramv1.PeerAddress, 0, len(target.Members))
	for rank, m := range target.Members {
		r := t.ranks[m.Id]
		address := t.agents[r.agent].GetAddress()
		out = append(out, &tangramv1.PeerAddress{
			Rank: uint32(rank), Member: m.Id, Agent: address.GetAgent(), Data: address.GetData(),
			Engine: r.status.GetEngine().GetEndpoint(), Frontend: r.status.GetEngine().GetFrontend(),
			CommLibrary: address.GetCommLibrary(), Node: m.Node, NvlinkDomain: m.NvlinkDomain, Rail: m.Rail,
		})
	}
	return out
}

// prepareFor returns the request to one agent: its own parts, and the target. The target is a delta if the agent is in
// the world already, else the whole layout.
func (t *truth) prepareFor(agent int, header *tangramv1.Header, flip *tangramv1.Flip, target *tangramv1.Layout) *tangramv1.PrepareRequest {
	request := &tangramv1.PrepareRequest{Header: header, Geometry: t.view.Proto, Kind: flip.Kind, TargetEpoch: flip.Epoch,
		TargetHash: flip.TargetHash, Peers: t.peers(target)}
	inWorld := false
	for _, m := range t.layout.GetMembers() {
		r, here := t.ranks[m.Id]
		inWorld = inWorld || here && r.agent == agent
	}
	if inWorld && flip.Kind != tangramv1.FlipKind_FLIP_KIND_FIRST {
		request.Target = &tangramv1.PrepareRequest_Delta{Delta: flip.Delta}
	} else {
		request.Target = &tangramv1.PrepareRequest_Layout{Layout: target}
	}
	for _, part := range flip.Parts {
		if r, ok := t.ranks[part.Member]; ok && r.agent == agent {
			request.Parts = append(request.Parts, part)
		}
	}
	return request
}

// joinersFirst splits agents: those without a member in the active layout come first.
func (t *truth) joinersFirst(agents []int) (joiners, others []int) {
	in := map[int]bool{}
	for _, i := range t.agentsOf(t.layout) {
		in[i] = true
	}
	for _, i := range agents {
		if in[i] {
			others = append(others, i)
		} else {
			joiners = append(joiners, i)
		}
	}
	return joiners, others
}
