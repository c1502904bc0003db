package driver

import (
	"context"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Look is the input of a keeper's decision: the agents' reports, read against the membership record.
type Look struct {
	// Layout that is active, its epoch and hash; nil: none, or no member of it answers.
	Layout *tangramv1.Layout
	Epoch  uint64
	Hash   []byte
	// Trouble wraps ErrNeedsRepair; nil: all members of the active layout answer and run.
	Trouble error
	// Broken: the trouble is certain, not only a missing answer. Then only a Repair can change the world.
	Broken bool
	// Lagging: Broken only because a member is outside the world. During a flip it may have reported before it flipped.
	Lagging bool
	// Outcasts are answering ranks that a Repair must release.
	Outcasts []string
	// Unfinished: some rank is in an open attempt.
	Unfinished bool
	// Able is the number of members and possible joiners whose agents answer and whose engines are attached.
	Able int
}

// Look queries the world without changing it. With an error (no agent answers, agents contradict each other, the record
// cannot be read) the result has at most the layout.
func (d *Driver) Look(ctx context.Context) (*Look, error) {
	t, err := d.observe(ctx)
	if t == nil {
		return &Look{}, err
	}
	out := &Look{Layout: t.layout, Epoch: t.epoch(), Hash: t.hash}
	if err != nil {
		return out, err
	}
	out.Trouble, out.Unfinished = t.trouble(), findLeftover(t.agents) != nil
	out.Broken = out.Trouble != nil && t.evident(d.Complete)
	out.Lagging = out.Broken && !t.lost(d.Complete)
	for i, a := range t.agents {
		for _, r := range a.GetRanks() {
			if t.mustGo(i, r) {
				out.Outcasts = append(out.Outcasts, r.GetMember().GetId())
			}
		}
	}
	for _, id := range t.order {
		if r, here := t.ranks[id]; here && r.status.GetEngine().GetAttached() {
			out.Able++
		}
	}
	return out, nil
}
