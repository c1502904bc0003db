package driver

import (
	"bytes"
	"context"
	"fmt"

	"tangram.dev/operator/internal/store"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Fence states the survivors after a loss, and the outcome of the attempt that the loss broke. It is written once, by
// compare-and-swap, before any survivor receives anything.
type Fence struct {
	// FromEpoch of the attempt; without an unfinished attempt, the survivors' epoch.
	FromEpoch uint64 `json:"from_epoch"`
	Attempt   uint64 `json:"attempt,omitempty"`
	Outcome   string `json:"outcome"` // stay, forward
	// Epoch and Hash of the layout that the survivors have after the outcome.
	Epoch     uint64   `json:"epoch"`
	Hash      string   `json:"hash,omitempty"`
	Survivors []string `json:"survivors"` // none: the world has ended
	Lost      []Lost   `json:"lost,omitempty"`
}

func (f *Fence) forward() bool { return f.Outcome == "forward" }

// of says that the fence was decided from this epoch. The survivors of a later one are then a subset.
func (f *Fence) of(epoch uint64) bool { return f != nil && (f.FromEpoch == epoch || f.Epoch == epoch) }

func (f *Fence) lost(member string) bool {
	if f == nil {
		return false
	}
	for _, l := range f.Lost {
		if l.Member == member {
			return true
		}
	}
	return false
}

// Membership is the record of the active epoch, and of the last fence.
type Membership struct {
	Epoch   uint64   `json:"epoch"`
	Hash    string   `json:"hash"`
	Members []string `json:"members"`
	Fence   *Fence   `json:"fence,omitempty"`
	// Number of ended worlds of this name, each restarted from the checkpoint, and members of ended worlds, newest
	// first. The reports of such members are about an ended world.
	Worlds uint64   `json:"worlds,omitempty"`
	Ended  []string `json:"ended,omitempty"`
	// Repair is the attempt of a repair that may flip. It is written with the permit, so an older fence decision fails.
	Repair uint64 `json:"repair,omitempty"`

	version uint64
}

// endedKept bounds Ended. Older members of ended worlds are recognized by their epoch.
const endedKept = 1024

func (d *Driver) membership(ctx context.Context) (Membership, error) {
	var m Membership
	version, err := store.Load(ctx, d.Store, keyMembership, &m)
	m.version = version
	return m, err
}

// believed says whether an agent's reported layout is of this world according to the record. It is not if it is older
// than the record, if only removed members have it, or if it is of an ended world.
func (m *Membership) believed(s *tangramv1.StatusResponse) bool {
	if s.GetLayout() == nil {
		return false
	}
	floor, fenced, ended := m.Epoch, false, true // ended: all of its ranks in the layout are of an ended world
	for _, r := range s.GetRanks() {
		if !r.GetInWorld() {
			continue
		}
		ended = ended && contains(m.Ended, r.GetMember().GetId())
		fenced = fenced || m.Fence != nil && contains(m.Fence.Survivors, r.GetMember().GetId())
	}
	if m.Fence != nil && m.Epoch == m.Fence.Epoch {
		floor = m.Fence.FromEpoch
	}
	switch {
	case ended || s.Epoch < floor:
		return false
	case m.Fence != nil && len(m.Fence.Survivors) > 0 && s.Epoch <= m.Fence.Epoch+1:
		return fenced
	}
	return true
}

// leftBy says whether an agent's ranks left the world with the flip to the layout that it reports. They are in no
// layout, but their report of that flip still proves the outcome.
func (m *Membership) leftBy(s *tangramv1.StatusResponse) bool {
	left := false
	for _, r := range s.GetRanks() {
		t := r.GetTransition()
		if r.GetInWorld() || contains(m.Ended, r.GetMember().GetId()) || m.Fence.lost(r.GetMember().GetId()) {
			return false
		}
		left = left || t.GetPhase() == tangramv1.Phase_PHASE_FLIPPED && t.GetTargetEpoch() == s.GetEpoch() && bytes.Equal(t.GetTargetHash(), s.GetLayoutHash())
	}
	return left && s.GetLayout() != nil && s.Epoch > m.Epoch
}

// mayRepair records that the repair of this attempt may flip.
func (d *Driver) mayRepair(ctx context.Context, was Membership, attempt uint64) error {
	now := was
	now.Repair = attempt
	_, err := store.Save(ctx, d.Store, keyMembership, was.version, now)
	return err
}

// fence writes the ruling. If the record is not the one that the ruling was made from, it fails with store.ErrConflict
// and does nothing.
func (d *Driver) fence(ctx context.Context, was Membership, r ruling, attempt uint64, hash string) (Membership, error) {
	f := &Fence{FromEpoch: r.fromEpoch, Attempt: attempt, Outcome: "stay", Epoch: r.standOn, Hash: hash,
		Survivors: r.survivors, Lost: r.lost}
	if r.outcome == tangramv1.Outcome_OUTCOME_ROLL_FORWARD {
		f.Outcome = "forward"
	}
	now := Membership{Epoch: r.standOn, Hash: hash, Members: r.survivors, Fence: f, Worlds: was.Worlds, Ended: was.Ended}
	if was.Epoch > now.Epoch {
		return was, fmt.Errorf("the store is at epoch %d, so a fence at epoch %d would move backwards", was.Epoch, now.Epoch)
	}
	version, err := store.Save(ctx, d.Store, keyMembership, was.version, now)
	if err != nil {
		return was, fmt.Errorf("fence attempt %d from epoch %d: %w", attempt, r.fromEpoch, err)
	}
	now.version = version
	return now, nil
}

// ended records that the world has ended: a fence without survivors.
func (d *Driver) ended(ctx context.Context, was Membership, members []string, lost []Lost, epoch uint64) (Membership, error) {
	now := Membership{Fence: &Fence{FromEpoch: epoch, Outcome: "stay", Epoch: epoch, Survivors: []string{}, Lost: lost},
		Worlds: was.Worlds + 1, Ended: append(append([]string(nil), members...), was.Ended...)}
	now.Ended = now.Ended[:min(len(now.Ended), endedKept)]
	version, err := store.Save(ctx, d.Store, keyMembership, was.version, now)
	if err != nil {
		return was, fmt.Errorf("record the end of the world of epoch %d: %w", epoch, err)
	}
	now.version = version
	return now, nil
}

// found records the first layout before it may be active.
func (d *Driver) found(ctx context.Context, was Membership, flip *tangramv1.Flip, target *tangramv1.Layout) error {
	now := was
	now.Epoch, now.Hash, now.Members = flip.Epoch, short(flip.TargetHash), idsOf(target)
	if _, err := store.Save(ctx, d.Store, keyMembership, was.version, now); err != nil {
		return fmt.Errorf("record the first layout: %w", err)
	}
	return nil
}

// unfound removes that record, after every agent has reported that it did not flip and will not.
func (d *Driver) unfound(ctx context.Context, attempt uint64, flip *tangramv1.Flip) error {
	was, err := d.membership(ctx)
	if err != nil || was.Epoch != flip.Epoch || was.Hash != short(flip.TargetHash) {
		return err
	}
	// If a later attempt has the same target and the permit, the record belongs to it.
	var intent Intent
	if _, err := store.Load(ctx, d.Store, keyIntent, &intent); err != nil || intent.Attempt != attempt {
		return err
	}
	now := was
	now.Epoch, now.Hash, now.Members = 0, "", nil
	_, err = store.Save(ctx, d.Store, keyMembership, was.version, now)
	return err
}
