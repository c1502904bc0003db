package driver

import (
	"bytes"
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// rankTruth is one rank as its agent tells it.
type rankTruth struct {
	agent  int // index of the agent
	status *tangramv1.RankStatus
}

// truth is what all agents say at one time. Nothing in it is remembered from before.
type truth struct {
	agents   []*tangramv1.StatusResponse
	layout   *tangramv1.Layout // of the highest epoch that any agent is in; nil: none
	ranks    map[string]rankTruth
	order    []string // member ids: those of the layout by rank, then the others by agent
	view     *geometry.View
	revision string
}

// observe asks every agent.
func (d *Driver) observe(ctx context.Context) (*truth, error) {
	statuses := make([]*tangramv1.StatusResponse, len(d.Agents))
	group, ctx := errgroup.WithContext(ctx)
	for i, agent := range d.Agents {
		group.Go(func() error {
			status, err := agent.Status(ctx, d.World)
			statuses[i] = status
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("ask the agents: %w", err)
	}
	return newTruth(d.World, statuses)
}

// newTruth is pure: it joins the agents' words, or says where they contradict each other.
func newTruth(world string, agents []*tangramv1.StatusResponse) (*truth, error) {
	t := &truth{agents: agents, ranks: map[string]rankTruth{}}
	if len(agents) == 0 {
		return nil, fmt.Errorf("world %q has no agents", world)
	}
	var hash []byte
	var shape *tangramv1.Geometry
	for i, a := range agents {
		name := a.GetAddress().GetAgent()
		if a.World != world {
			return nil, fmt.Errorf("agent %s is of world %q, not %q", name, a.World, world)
		}
		even := shape.GetEvenShardsOnly() || a.Geometry.GetEvenShardsOnly()
		mine := proto.CloneOf(a.Geometry)
		if mine == nil {
			return nil, fmt.Errorf("agent %s tells no geometry", name)
		}
		mine.EvenShardsOnly = even
		if shape != nil {
			shape.EvenShardsOnly = even
			if !proto.Equal(shape, mine) {
				return nil, fmt.Errorf("agent %s reads another model than agent %s: %v and %v", name,
					agents[0].GetAddress().GetAgent(), mine, shape)
			}
		}
		shape = mine
		if i > 0 && a.Revision != agents[0].Revision {
			return nil, fmt.Errorf("agent %s reads revision %q, agent %s %q", name, a.Revision,
				agents[0].GetAddress().GetAgent(), agents[0].Revision)
		}
		for _, rank := range a.Ranks {
			if _, twice := t.ranks[rank.GetMember().GetId()]; twice {
				return nil, fmt.Errorf("two agents say they are member %s", rank.GetMember().GetId())
			}
			t.ranks[rank.GetMember().GetId()] = rankTruth{agent: i, status: rank}
		}
		if a.Layout == nil {
			continue
		}
		if t.layout == nil || a.Epoch > t.layout.Epoch {
			t.layout, hash = a.Layout, a.LayoutHash
		} else if a.Epoch == t.layout.Epoch && !bytes.Equal(a.LayoutHash, hash) {
			return nil, fmt.Errorf("agents disagree about epoch %d: layouts %x and %x; a world never has two", a.Epoch, a.LayoutHash, hash)
		}
	}
	t.revision = agents[0].Revision
	for _, m := range t.layout.GetMembers() {
		if _, here := t.ranks[m.Id]; !here {
			return nil, fmt.Errorf("member %s of epoch %d does not answer; a world can change once all its members are back", m.Id, t.layout.Epoch)
		}
		t.order = append(t.order, m.Id)
	}
	for _, a := range agents {
		for _, rank := range a.Ranks {
			if layout.RankOf(t.layout, rank.Member.Id) < 0 {
				t.order = append(t.order, rank.Member.Id)
			}
		}
	}
	view, err := viewOf(shape)
	if err != nil {
		return nil, fmt.Errorf("geometry of the checkpoint: %w", err)
	}
	t.view = view
	return t, nil
}

func (t *truth) epoch() uint64 { return t.layout.GetEpoch() }

// choose names the members of the world that is wanted.
func (t *truth) choose(want Wanted) ([]string, error) {
	if len(want.Members) == 0 {
		if want.Ranks > len(t.order) {
			return nil, fmt.Errorf("%d ranks wanted, the agents have %d; start more pods", want.Ranks, len(t.order))
		}
		return t.order[:want.Ranks], nil
	}
	seen := map[string]bool{}
	for _, id := range want.Members {
		if _, here := t.ranks[id]; !here {
			return nil, fmt.Errorf("member %s is wanted and no agent has it", id)
		}
		if seen[id] {
			return nil, fmt.Errorf("member %s is wanted twice", id)
		}
		seen[id] = true
	}
	return want.Members, nil
}

// withoutEngine are the members of target or of the layout in force whose engine is not attached.
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

// after is the truth with another layout in force: addresses and ranks stay.
func (t *truth) after(l *tangramv1.Layout) *truth {
	next := *t
	next.layout = l
	return &next
}

// agentsOf are the agents that hold a member of either layout (nil: none), by index.
func (t *truth) agentsOf(layouts ...*tangramv1.Layout) []int {
	in := make([]bool, len(t.agents))
	for _, l := range layouts {
		for _, m := range l.GetMembers() {
			in[t.ranks[m.Id].agent] = true
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

// highestAttempt that any agent has seen.
func (t *truth) highestAttempt() uint64 {
	var high uint64
	for _, a := range t.agents {
		high = max(high, a.HighestAttempt)
	}
	return high
}

// peers of a target layout, by rank.
func (t *truth) peers(target *tangramv1.Layout) []*tangramv1.PeerAddress {
	out := make([]*tangramv1.PeerAddress, 0, len(target.Members))
	for rank, m := range target.Members {
		r := t.ranks[m.Id]
		address := t.agents[r.agent].GetAddress()
		out = append(out, &tangramv1.PeerAddress{
			Rank: uint32(rank), Member: m.Id, Agent: address.GetAgent(), Data: address.GetData(), Shared: address.GetShared(),
			Engine: r.status.GetEngine().GetEndpoint(), Frontend: r.status.GetEngine().GetFrontend(),
		})
	}
	return out
}

// prepareFor is the request to one agent: its own parts, and the target as a delta where
// it is in the world already, whole where it is not.
func (t *truth) prepareFor(agent int, header *tangramv1.Header, flip *tangramv1.Flip, target *tangramv1.Layout) *tangramv1.PrepareRequest {
	request := &tangramv1.PrepareRequest{Header: header, Geometry: t.view.Proto, Kind: flip.Kind, TargetEpoch: flip.Epoch,
		TargetHash: flip.TargetHash, Peers: t.peers(target)}
	inWorld := false
	for _, m := range t.layout.GetMembers() {
		inWorld = inWorld || t.ranks[m.Id].agent == agent
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

// joinersFirst splits agents: those without a member in the layout in force come first.
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
