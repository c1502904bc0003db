package planner

import (
	"errors"
	"fmt"
	"slices"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// HeadroomInput is a layout at rest, and the pools of its members.
type HeadroomInput struct {
	Geometry *geometry.View
	Layout   *tangramv1.Layout
	// Members of Layout, in any order; only their id and MemoryBytes are read. A missing member, or one with
	// MemoryBytes 0, is not checked.
	Members []Member
}

// RankNeed is the memory that a repair needs on one survivor.
type RankNeed struct {
	Rank        uint32 // in the layout before the loss
	Member      string
	NeedBytes   uint64 // pieces and dense weights after the repair, which is its peak
	MemoryBytes uint64 // of its pool; 0: not checked
	ShortBytes  uint64 // NeedBytes beyond MemoryBytes
	KVTokens    uint64 // tokens of this rank's KV cache that use ShortBytes; 0: nothing short, or unknown
}

// RankLoss is the effect of the loss of one rank on the others.
type RankLoss struct {
	Rank       uint32
	Member     string
	BringBytes uint64     // of the pieces that the survivors take over
	Survivors  []RankNeed // by rank
	Short      uint64     // maximum of ShortBytes
	// Beyond explains why no amount of memory suffices: the world must restart from the checkpoint. Empty: a repair is
	// possible.
	Beyond string
}

// HeadroomResult is whether the loss of any one rank could be repaired.
type HeadroomResult struct {
	Enough bool
	// Worst loss: one beyond repair, otherwise the one with the largest shortage, otherwise the one that leaves the
	// least of a pool.
	Worst RankLoss
}

// Headroom checks whether the loss of any one rank could be repaired within the pools of the others. It plans each
// repair as Repair would, with only the layout's own pieces.
func Headroom(in HeadroomInput) (*HeadroomResult, error) {
	if in.Layout == nil {
		return nil, fmt.Errorf("headroom: no layout is active yet")
	}
	w, err := newWorld(Input{World: in.Layout.World, Revision: in.Layout.Revision, Geometry: in.Geometry, Current: in.Layout,
		Members: in.Members})
	if err != nil {
		return nil, fmt.Errorf("headroom: %w", err)
	}
	w.readLayers()
	w.held = &holdings{experts: int(w.v.Proto.Experts), first: make([]int32, w.v.MoELayers()*int(w.v.Proto.Experts)+1)}
	everybody := ranks(len(in.Layout.Members))
	for r := range w.answers {
		w.answers[r] = true
	}
	w.target = everybody
	before := w.repairedPages(in.Layout.Layers)
	out := &HeadroomResult{Enough: true}
	for lost := range everybody {
		loss, err := w.loss(uint32(lost), before)
		if err != nil {
			return nil, fmt.Errorf("headroom: loss of rank %d: %w", lost, err)
		}
		out.Enough = out.Enough && loss.Beyond == "" && loss.Short == 0
		if loss.worse(&out.Worst) { // true for the first one: it leaves less than no loss
			out.Worst = *loss
		}
	}
	return out, nil
}

// loss of one rank. before: each rank's pages of experts without the loss.
func (w *world) loss(lost uint32, before []uint64) (*RankLoss, error) {
	w.answers[lost] = false
	defer func() { w.answers[lost] = true }()
	w.target = slices.DeleteFunc(ranks(len(w.members)), w.lost)
	out := &RankLoss{Rank: lost, Member: w.members[lost].Id}
	if len(w.target) == 0 {
		out.Beyond = "no other rank exists"
		return out, nil
	}
	t, pages := newTakeover(w), slices.Clone(before)
	for l, now := range w.cur.Layers {
		next, err := t.layer(uint32(l))
		if beyond := (*beyondRepair)(nil); errors.As(err, &beyond) {
			out.Beyond = beyond.why
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		o := w.v.Ordinal(uint32(l))
		if o < 0 || next == now {
			continue
		}
		old, seats := w.old[o], seatsOf(next, len(w.members))
		for _, rank := range w.target {
			if !sameSeat(old.layer, old.seats[rank], next, seats[rank]) {
				pages[rank] += w.layerPages(next, seats[rank], old.shards, nil, nil) -
					w.layerPages(old.layer, old.seats[rank], old.shards, nil, nil)
			}
		}
	}
	out.BringBytes = t.given
	for _, rank := range w.target {
		need := RankNeed{Rank: rank, Member: w.members[rank].Id, NeedBytes: (pages[rank] + w.v.DensePages) * w.v.Proto.PageBytes,
			MemoryBytes: w.info[rank].MemoryBytes}
		if need.MemoryBytes != 0 && need.NeedBytes > need.MemoryBytes {
			need.ShortBytes = need.NeedBytes - need.MemoryBytes
			if token := w.kvTokenBytes(rank); token > 0 {
				need.KVTokens = (need.ShortBytes + token - 1) / token
			}
		}
		out.Short = max(out.Short, need.ShortBytes)
		out.Survivors = append(out.Survivors, need)
	}
	return out, nil
}

// sameSeat reports whether the rank holds the same pieces of the layer, at the same places.
func sameSeat(before *tangramv1.LayerLayout, was seat, after *tangramv1.LayerLayout, is seat) bool {
	if was.group < 0 || is.group < 0 {
		return was.group == is.group
	}
	return slices.Equal(was.positions, is.positions) &&
		slices.Equal(before.Experts[was.group].Slots, after.Experts[is.group].Slots)
}

// kvTokenBytes returns the KV bytes of one token on a rank of its home's group.
func (w *world) kvTokenBytes(rank uint32) uint64 {
	heads := uint64(0)
	for _, layer := range w.cur.Layers {
		for _, group := range layer.Attention {
			if p := slices.Index(group.Ranks, rank); p >= 0 {
				first, last := layout.KVHeadsOf(group, p, w.v)
				heads += uint64(last - first)
			}
		}
	}
	return heads * w.v.Proto.KvHeadTokenBytes
}

// worse orders losses.
func (l *RankLoss) worse(than *RankLoss) bool {
	if (l.Beyond == "") != (than.Beyond == "") {
		return l.Beyond != ""
	}
	if l.Short != than.Short {
		return l.Short > than.Short
	}
	return l.leaves() < than.leaves()
}

// leaves is the minimum that remains of a pool; without pools, it compares the needs.
func (l *RankLoss) leaves() int64 {
	least := int64(1<<63 - 1)
	for _, s := range l.Survivors {
		least = min(least, int64(s.MemoryBytes)-int64(s.NeedBytes))
	}
	return least
}
