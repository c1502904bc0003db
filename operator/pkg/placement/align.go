package placement

// aligner renames equivalent ranks of a free plan to match the old placement, so that as much as possible stays, and
// puts experts into their old slots.
type aligner struct {
	classes [][]int32 // ranks that can be renamed into each other
	solve   assignment
	weight  []float64
	columns []int32
	became  []int32 // [rank] the rank whose content it gets
	scratch []int32 // a copy of the layer's slots
	mark    []int32 // [expert]
	place   []int32 // [rank] position within its class
	class   []int32 // [rank]
	head    []int32 // [expert] an old slot with it, or -1
	next    []int32
	oldRank []int32 // [old slot]
}

type likeness struct {
	slots int32
	slow  float64
	node  int
}

// shape finds the classes: ranks with equal numbers of slots and equal speed. If `groups` are kept in nodes, each class
// is within one node.
func (a *aligner) shape(s *state, problem *Problem) {
	a.classify(s, problem, false)
	a.mark = grow(a.mark, s.experts) // all zero: functions that set marks clear them
	a.became, a.scratch = grow(a.became, s.ranks), grow(a.scratch, s.slots)
	if old := problem.Old; old != nil {
		a.head, a.next = grow(a.head, s.experts), grow(a.next, old.Slots())
		a.oldRank = grow(a.oldRank, old.Slots())
		for g := range old.Ranks() {
			for j := old.Start[g]; j < old.Start[g+1]; j++ {
				a.oldRank[j] = int32(g)
			}
		}
	}
}

func (a *aligner) classify(s *state, problem *Problem, byNode bool) {
	a.class, a.place = grow(a.class, s.ranks), grow(a.place, s.ranks)
	a.classes = a.classes[:0]
	index := map[likeness]int{}
	for _, g := range s.live {
		k := likeness{slots: s.start[g+1] - s.start[g], slow: s.slow[g]}
		if byNode {
			k.node = problem.Ranks[g].Node
		}
		c, ok := index[k]
		if !ok {
			c = len(a.classes)
			index[k] = c
			a.classes = append(a.classes, nil)
		}
		a.class[g], a.place[g] = int32(c), int32(len(a.classes[c]))
		a.classes[c] = append(a.classes[c], g)
	}
}

// seat renames the ranks of a layer and puts experts into their old slots. Afterwards only the slots are valid: loads,
// lists and has are stale.
func (a *aligner) seat(s *state, problem *Problem, ask *demand, l int) {
	old := problem.Old
	if old != nil {
		for e := range a.head {
			a.head[e] = -1
		}
		for j, e := range old.Layer(l) {
			if e != Empty {
				a.next[j], a.head[e] = a.head[e], int32(j)
			}
		}
	}
	for g := range a.became {
		a.became[g] = int32(g)
	}
	for c := range a.classes {
		a.rename(s, old != nil, ask, c)
	}
	copy(a.scratch, s.slot)
	for g := range int32(s.ranks) {
		a.slots(s, old, l, g)
	}
}

// rename solves the assignment of the new contents of a class to its ranks.
func (a *aligner) rename(s *state, old bool, ask *demand, class int) {
	ranks := a.classes[class]
	n := len(ranks)
	a.weight, a.columns = grow(a.weight, n*n), grow(a.columns, n)
	clear(a.weight)
	for x, g := range ranks {
		row := a.weight[x*n : (x+1)*n]
		for _, e := range s.slot[s.start[g]:s.start[g+1]] {
			if e == Empty {
				continue
			}
			if old {
				for j := a.head[e]; j >= 0; j = a.next[j] {
					if h := a.oldRank[j]; int(h) < s.ranks && s.start[h+1] > s.start[h] && a.class[h] == int32(class) {
						row[a.place[h]]++
					}
				}
			}
			if ask.on { // tie-break between seats that keep equally many slots
				for y, h := range ranks {
					row[y] += ask.worth(s, h, e)
				}
			}
		}
	}
	a.solve.heaviest(n, a.weight, a.columns)
	for x, y := range a.columns {
		a.became[ranks[y]] = ranks[x]
	}
}

// slots seats the new content of rank g: its old experts keep their slots, the rest fills the gaps.
func (a *aligner) slots(s *state, old *Placement, l int, g int32) {
	now := s.slot[s.start[g]:s.start[g+1]]
	from := a.became[g]
	want := a.scratch[s.start[from]:s.start[from+1]]
	for i := range now {
		now[i] = Empty
	}
	const waits, seated = -1, -2
	for _, e := range want {
		if e != Empty {
			a.mark[e] = waits
		}
	}
	if old != nil && int(g) < old.Ranks() {
		for i, e := range old.Rank(l, int(g)) {
			if i < len(now) && e != Empty && a.mark[e] == waits {
				now[i], a.mark[e] = e, seated
			}
		}
	}
	i := 0
	for _, e := range want {
		if e == Empty {
			continue
		}
		if a.mark[e] == waits {
			for now[i] != Empty {
				i++
			}
			now[i] = e
		}
		a.mark[e] = 0
	}
}
