package driver

import (
	"context"

	"tangram.dev/operator/pkg/layout"
)

// Look is what a keeper of a world decides by. Unlike a View it is read against the record of members.
type Look struct {
	Epoch   uint64
	Hash    string // of the layout in force; empty: none
	Members []string
	// Trouble wraps ErrNeedsRepair; nil: the members of the layout in force are there and at work.
	Trouble error
	// Outcasts are ranks that answer and that a Repair must release.
	Outcasts []string
	// Unfinished: some rank is in the middle of an attempt.
	Unfinished bool
	// Able are the members and those that could join: their agents answer, their engines are attached.
	Able int
}

// Look at the world, without changing anything.
func (d *Driver) Look(ctx context.Context) (*Look, error) {
	t, err := d.observe(ctx)
	if err != nil {
		return nil, err
	}
	out := &Look{Epoch: t.epoch(), Members: idsOf(t.layout), Trouble: t.trouble(), Unfinished: findLeftover(t.agents) != nil}
	if t.layout != nil {
		hash, err := layout.Hash(t.layout)
		if err != nil {
			return nil, err
		}
		out.Hash = short(hash)
	}
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
