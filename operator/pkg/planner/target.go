package planner

import (
	"slices"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// change is one model layer between the current layout and the desired shape.
type change struct {
	layer   uint32
	ordinal int // -1: no experts
	next    *tangramv1.LayerLayout
	experts bool // expert groups change (else only attention)
	inPlace bool // in its own bank; otherwise next.BankOffset is set once the flip is known
	seats   []seat
	shards  *shardTable
	placed  [][]uint32 // experts by rank of the target, if a placement is requested
}

// decide computes the change of each layer. Layers that already fit are omitted.
func (w *world) decide(shapes []layout.LayerShape, useExtras bool) ([]*change, error) {
	var out []*change
	spare := map[uint32][]int{} // longer shares so far, by group size
	attention := map[uint32][]*tangramv1.AttentionGroup{}
	for l, s := range shapes {
		groups := attention[s.AttentionGroup]
		if groups == nil {
			bounds, err := layout.HeadBounds(w.v, s.AttentionGroup)
			if err != nil {
				return nil, err
			}
			for i := 0; i < len(w.target); i += int(s.AttentionGroup) {
				groups = append(groups, &tangramv1.AttentionGroup{Ranks: w.target[i : i+int(s.AttentionGroup)],
					QueryHeadBounds: bounds})
			}
			attention[s.AttentionGroup] = groups
		}
		c := &change{layer: uint32(l), ordinal: w.v.Ordinal(uint32(l))}
		c.next = &tangramv1.LayerLayout{Layer: uint32(l), ExpertGroupSize: s.ExpertGroup,
			AttentionGroupSize: s.AttentionGroup, Attention: groups}
		same := w.cur != nil && sameAttention(w.cur.Layers[l].Attention, groups)
		if c.ordinal >= 0 {
			if w.cur != nil && w.expertsFit(c.ordinal, s.ExpertGroup, w.in.Shape.PlacementOf(c.ordinal)) {
				c.next.BankOffset, c.next.Experts = w.cur.Layers[l].BankOffset, w.cur.Layers[l].Experts
			} else {
				same, c.experts = false, true
				if spare[s.ExpertGroup] == nil {
					spare[s.ExpertGroup] = make([]int, len(w.target)/int(s.ExpertGroup))
				}
				if err := w.place(c, spare[s.ExpertGroup], useExtras); err != nil {
					return nil, err
				}
			}
		}
		if !same {
			out = append(out, c)
		}
	}
	return out, nil
}

func sameAttention(a, b []*tangramv1.AttentionGroup) bool {
	return slices.EqualFunc(a, b, func(x, y *tangramv1.AttentionGroup) bool {
		return slices.Equal(x.Ranks, y.Ranks) && slices.Equal(x.QueryHeadBounds, y.QueryHeadBounds)
	})
}

// expertsFit reports whether the layer already has the desired shape: the placed experts, or groups of the desired
// ranks in any order of positions, balanced, without redundant experts. Its missing pieces are fetched into their
// places.
func (w *world) expertsFit(o int, g uint32, placed [][]uint32) bool {
	old := w.old[o]
	if placed != nil {
		return w.liesAs(old, placed)
	}
	if len(old.layer.Experts)*int(g) != len(w.target) || !w.balanced(old, int(g)) {
		return false
	}
	for _, group := range old.layer.Experts {
		ranks := slices.Clone(group.Ranks)
		slices.Sort(ranks)
		at, _ := slices.BinarySearch(w.target, ranks[0])
		// Groups of neighbors that divide all ranks start at multiples of their size.
		if !slices.Equal(ranks, w.target[at:min(at+int(g), len(w.target))]) {
			return false
		}
	}
	return true
}

// place assigns the layer's experts to the target ranks, with their places.
func (w *world) place(c *change, spare []int, useExtras bool) error {
	g, o, n := int(c.next.ExpertGroupSize), c.ordinal, len(w.target)
	groups := n / g
	c.shards = w.shards(uint32(g))
	if placed := w.in.Shape.PlacementOf(o); placed != nil {
		return w.placeAs(c, placed)
	}
	if w.sameSlots(c, spare, useExtras) {
		return nil
	}
	c.inPlace = g == 1 && w.cur != nil && w.old[o].layer.ExpertGroupSize == 1
	useExtras = useExtras && c.inPlace
	order := slices.Clone(w.target) // rank at group*g+position
	owners := make([]int, w.held.experts)
	if groups > 1 {
		owners = w.deal(o, g, order, spare, useExtras)
	}
	if g > 1 {
		// With several groups, assignment and seating depend on each other: assign, seat, and repeat once. With one
		// group the seating alone is exact.
		for round := 0; ; round++ {
			for j := range groups {
				w.seatGroup(o, j, order[j*g:(j+1)*g], owners, c.shards, useExtras)
			}
			if groups == 1 || round == 1 {
				break
			}
			owners = w.deal(o, g, order, spare, useExtras)
		}
	}
	count := make([]int, groups)
	for _, j := range owners {
		count[j]++
	}
	for j := range count {
		if count[j] > w.held.experts/groups {
			spare[j]++
		}
	}
	c.next.Experts = make([]*tangramv1.ExpertGroup, groups)
	made := make([]tangramv1.ExpertGroup, groups)
	for j := range groups {
		c.next.Experts[j] = &made[j]
		made[j].Ranks = order[j*g : (j+1)*g : (j+1)*g]
	}
	if c.inPlace {
		c.next.BankOffset = w.old[o].layer.BankOffset
		if err := w.slotsInPlace(c, byGroup(owners, groups)); err != nil {
			return err
		}
	} else {
		slots := make([]uint32, len(owners))
		for j, n := range count {
			made[j].Slots, slots = slots[:0:n], slots[n:]
		}
		for e, j := range owners {
			made[j].Slots = append(made[j].Slots, uint32(e)+1)
		}
	}
	c.seats = seatsOf(c.next, len(w.members))
	return nil
}

// worth is the number of bytes that a rank with these runs saves if it must hold `want`.
func (w *world) worth(runs []geometry.Run, want geometry.Run) int64 {
	granules := uint32(0)
	for _, r := range runs {
		granules += r.Overlap(want).Count
	}
	if len(runs) == 0 {
		return 0
	}
	return int64(w.v.PieceBytes(granules))
}

func (w *world) deal(o, g int, order []uint32, spare []int, useExtras bool) []int {
	groups := len(order) / g
	index := make([]int, len(w.members)) // of each rank in order, + 1
	for i, rank := range order {
		index[rank] = i + 1
	}
	worths := make([][]worth, w.held.experts)
	all := w.worths[:0] // storage of the lists, one after another
	shards := w.shards(uint32(g))
	var buffer [8]geometry.Run
	for e := range w.held.experts {
		from := len(all)
		byRank(w.held.of(o, e), func(rank uint32, mine []holder) {
			i := index[rank] - 1
			if i < 0 {
				return
			}
			value := w.worth(runsOf(mine, useExtras, buffer[:]), shards.of(uint32(e), uint32(i%g)))
			if value == 0 {
				return
			}
			if at := slices.IndexFunc(all[from:], func(h worth) bool { return h.group == i/g }); at >= 0 {
				all[from+at].value += value
			} else {
				all = append(all, worth{i / g, value})
			}
		})
		worths[e] = all[from:len(all):len(all)]
	}
	w.worths = all
	return assignExperts(groups, worths, spare)
}

// seatGroup orders the ranks of group j so that they keep as much as possible.
func (w *world) seatGroup(o, j int, ranks []uint32, owners []int, shards *shardTable, useExtras bool) {
	g := len(ranks)
	value := make([]int64, g*g)
	index := make([]int, len(w.members))
	for i, rank := range ranks {
		index[rank] = i + 1
	}
	var buffer [8]geometry.Run
	for e, owner := range owners {
		if owner != j {
			continue
		}
		byRank(w.held.of(o, e), func(rank uint32, mine []holder) {
			i := index[rank] - 1
			if i < 0 {
				return
			}
			runs := runsOf(mine, useExtras, buffer[:])
			for p := range g {
				value[i*g+p] += w.worth(runs, shards.of(uint32(e), uint32(p)))
			}
		})
	}
	at := assignPositions(g, value)
	before := slices.Clone(ranks)
	for p, i := range at {
		ranks[p] = before[i]
	}
}
