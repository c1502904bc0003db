package driver

import (
	"context"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Look is what a keeper of a world decides by: what its agents say, read against the record of members.
type Look struct {
	// Layout in force, its epoch and hash; nil: none, or nobody answers who is in it.
	Layout *tangramv1.Layout
	Epoch  uint64
	Hash   []byte
	// Trouble wraps ErrNeedsRepair; nil: the members of the layout in force are there and at work.
	Trouble error
	// Broken: the trouble is so for certain, not only unanswered questions. Then nothing but a Repair can change the world.
	Broken bool
	// Lagging: Broken, and only because some member is outside of the world. While a flip runs it may have been asked before it flipped.
	Lagging bool
	// Outcasts are ranks that answer and that a Repair must release.
	Outcasts []string
	// Unfinished: some rank is in the middle of an attempt.
	Unfinished bool
	// Able are the members and those that could join: their agents answer, their engines are attached.
	Able int
}

// Look at the world, without changing anything. With an error (nobody answers, agents contradict each other, the record
// cannot be read) it tells of the layout at most.
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
