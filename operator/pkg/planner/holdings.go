package planner

import (
	"fmt"
	"slices"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// holder is a rank that holds a run of an expert.
type holder struct {
	rank  uint32
	bank  uint32
	slot  uint32
	run   geometry.Run
	extra bool // not a piece of the current layout: dropped after the first flip
}

// holdings are all verified pieces of the world, by MoE ordinal and expert, then rank.
type holdings struct {
	experts     int
	first       []int32 // of ordinal*experts+expert in all; one more at the end
	all         []holder
	extras      []holder // subset of all, with
	extraOf     []int32  // their ordinal
	extraExpert []uint32
}

func (h *holdings) of(ordinal, expert int) []holder {
	i := ordinal*h.experts + expert
	return h.all[h.first[i]:h.first[i+1]]
}

// shardTable is the shard rule of one group size, by expert modulo g and position.
type shardTable struct {
	g    uint32
	runs []geometry.Run
}

func newShardTable(granules, g uint32) *shardTable {
	t := &shardTable{g: g, runs: make([]geometry.Run, g*g)}
	for e := range g {
		start := uint32(0)
		for p := range g {
			count := granules / g
			if (p+g-e)%g < granules%g {
				count++
			}
			t.runs[e*g+p] = geometry.Run{Start: start, Count: count}
			start += count
		}
	}
	return t
}

func (t *shardTable) of(expert, position uint32) geometry.Run { return t.runs[expert%t.g*t.g+position] }

// readInventories validates and collects the inventories. It counts held pieces that the current layout names in named.
func (w *world) readInventories() error {
	v := w.v
	w.held = &holdings{experts: int(v.Proto.Experts)}
	h := w.held
	h.first = make([]int32, v.MoELayers()*h.experts+1)
	total := 0
	for rank := range w.members {
		inv := w.info[rank].Inventory
		if inv == nil {
			continue
		}
		if err := w.checkInventory(uint32(rank), inv); err != nil {
			return err
		}
		for i, layer := range inv.Layer {
			h.first[v.Ordinal(layer)*h.experts+int(inv.Expert[i])+1]++
		}
		total += len(inv.Layer)
	}
	for i := 1; i < len(h.first); i++ {
		h.first[i] += h.first[i-1]
	}
	next := slices.Clone(h.first)
	h.all = make([]holder, total)
	w.named = make([]int, v.MoELayers())
	for rank := range w.members {
		inv := w.info[rank].Inventory
		if inv == nil {
			continue
		}
		for i, layer := range inv.Layer {
			o := v.Ordinal(layer)
			one := holder{rank: uint32(rank), bank: inv.Bank[i], slot: inv.Slot[i],
				run: geometry.Run{Start: inv.GranuleStart[i], Count: inv.GranuleCount[i]}}
			if w.names(o, &one, inv.Expert[i]) {
				w.named[o]++
			} else {
				one.extra = true
				h.extras, h.extraOf = append(h.extras, one), append(h.extraOf, int32(o))
				h.extraExpert = append(h.extraExpert, inv.Expert[i])
			}
			at := &next[o*h.experts+int(inv.Expert[i])]
			h.all[*at] = one
			*at++
		}
	}
	return nil
}

func (w *world) checkInventory(rank uint32, inv *tangramv1.Inventory) error {
	n := len(inv.Layer)
	if len(inv.Bank) != n || len(inv.Slot) != n || len(inv.Expert) != n || len(inv.GranuleStart) != n || len(inv.GranuleCount) != n {
		return fmt.Errorf("inventory of rank %d (%s): columns differ in length", rank, w.members[rank].Id)
	}
	if n == 0 {
		return nil
	}
	if inv.Revision != w.in.Revision {
		return fmt.Errorf("inventory of rank %d (%s): pieces of revision %q, the plan is for %q: retire the old revision first",
			rank, w.members[rank].Id, inv.Revision, w.in.Revision)
	}
	if w.cur == nil {
		return fmt.Errorf("inventory of rank %d (%s): %d pieces, but no layout serves: release them before a first start", rank,
			w.members[rank].Id, n)
	}
	for i, layer := range inv.Layer {
		run := geometry.Run{Start: inv.GranuleStart[i], Count: inv.GranuleCount[i]}
		if w.v.Ordinal(layer) < 0 || inv.Expert[i] >= w.v.Proto.Experts || inv.Bank[i] >= w.cur.Banks || run.Count == 0 ||
			uint64(run.Start)+uint64(run.Count) > uint64(w.v.Granules) {
			return fmt.Errorf("inventory of rank %d (%s): entry %d is layer %d, expert %d of %d, granules %d..%d of %d, bank %d of %d",
				rank, w.members[rank].Id, i, layer, inv.Expert[i], w.v.Proto.Experts, run.Start, uint64(run.Start)+uint64(run.Count),
				w.v.Granules, inv.Bank[i], w.cur.Banks)
		}
	}
	return nil
}

// seat is a rank's place in a layer: its group (-1: none) and its positions there, ascending.
type seat struct {
	group     int32
	positions []int32
}

func seatsOf(layer *tangramv1.LayerLayout, members int) []seat {
	seats := make([]seat, members)
	for r := range seats {
		seats[r].group = -1
	}
	n := 0
	for _, group := range layer.Experts {
		n += len(group.Ranks)
	}
	firsts := make([]int32, 0, n) // a rank has one position, except in unusual layouts
	for g, group := range layer.Experts {
		for p, rank := range group.Ranks {
			s := &seats[rank]
			s.group = int32(g)
			if s.positions == nil {
				firsts = append(firsts, int32(p))
				s.positions = slices.Clip(firsts[len(firsts)-1:])
			} else {
				s.positions = append(s.positions, int32(p))
			}
		}
	}
	return seats
}

// stands reports whether the seat has this run of the expert as a shard.
func (s seat) stands(shards *shardTable, expert uint32, run geometry.Run) bool {
	return slices.ContainsFunc(s.positions, func(p int32) bool { return shards.of(expert, uint32(p)) == run })
}

// names reports whether the current layout gives exactly this piece to its rank.
func (w *world) names(o int, h *holder, expert uint32) bool {
	l := w.old[o]
	if l.seats[h.rank].group < 0 || h.bank != l.bank {
		return false
	}
	at := l.seats[h.rank]
	slots := l.layer.Experts[at.group].Slots
	return h.slot < uint32(len(slots)) && slots[h.slot] == expert+1 && at.stands(l.shards, expert, h.run)
}

// runsOf returns the granules of consecutive holders of one rank, each once and in order. Each run is in one piece:
// adjacent runs of two pieces are at different addresses.
func runsOf(hs []holder, useExtras bool, buffer []geometry.Run) []geometry.Run {
	out := buffer[:0]
	for _, h := range hs {
		if !h.extra || useExtras {
			out = append(out, h.run)
		}
	}
	if len(out) < 2 {
		return out
	}
	slices.SortFunc(out, func(a, b geometry.Run) int { return int(a.Start) - int(b.Start) })
	n := 1
	for _, r := range out[1:] {
		if end := out[n-1].End(); r.Start < end {
			if r.End() <= end {
				continue
			}
			r = geometry.Run{Start: end, Count: r.End() - end}
		}
		out[n] = r
		n++
	}
	return out[:n]
}

// byRank calls f for each rank's holders of an expert.
func byRank(hs []holder, f func(rank uint32, mine []holder)) {
	for i := 0; i < len(hs); {
		j := i + 1
		for j < len(hs) && hs[j].rank == hs[i].rank {
			j++
		}
		f(hs[i].rank, hs[i:j])
		i = j
	}
}

// oldLayer is a MoE layer of the current layout.
type oldLayer struct {
	layer  *tangramv1.LayerLayout
	bank   uint32
	seats  []seat // by rank
	shards *shardTable
	pieces int // that the layout names, over all ranks
}

func (w *world) readLayers() {
	if w.cur == nil {
		return
	}
	w.old = make([]oldLayer, w.v.MoELayers())
	for o, l := range w.v.Proto.MoeLayers {
		layer := w.cur.Layers[l]
		old := oldLayer{layer: layer, bank: layout.Bank(layer, w.v), seats: seatsOf(layer, len(w.members)),
			shards: w.shards(layer.ExpertGroupSize)}
		for _, group := range layer.Experts {
			for _, slot := range group.Slots {
				if slot != 0 {
					old.pieces += len(group.Ranks)
				}
			}
		}
		w.old[o] = old
	}
}

func (w *world) shards(g uint32) *shardTable {
	t := w.tables[g]
	if t == nil {
		t = newShardTable(w.v.Granules, g)
		w.tables[g] = t
	}
	return t
}
