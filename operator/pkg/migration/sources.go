package migration

// Sources chooses the sender of each move, so that the busiest sender sends as little as possible. This is an optimal
// semi-matching (Harvey, Ladner, Lovasz, Tamir 2003). A rank that sends k may hand over work along a path of moves to a
// rank that sends at most k - 2. If no rank has such a path, the sorted list of loads is minimal.
func Sources(moves []Move) {
	ranks := int32(0)
	for _, m := range moves {
		for _, g := range m.From {
			ranks = max(ranks, g+1)
		}
	}
	c := chooser{moves: moves, sends: make([][]int32, ranks), at: make([]int32, len(moves)), by: make([]int32, ranks), queue: nil}
	for k := range moves {
		best := Nowhere
		for _, g := range moves[k].From {
			if best == Nowhere || len(c.sends[g]) < len(c.sends[best]) {
				best = g
			}
		}
		if moves[k].Source = best; best != Nowhere {
			c.give(int32(k), best)
		}
	}
	for changed := true; changed; {
		changed = false
		for g := range ranks {
			for c.relieve(g) {
				changed = true
			}
		}
	}
}

type chooser struct {
	moves []Move
	sends [][]int32 // [rank] moves it sends
	at    []int32   // [move] index in its rank's list
	by    []int32   // [rank] the move that leads to it on a path, -1: not visited
	queue []int32
}

func (c *chooser) give(k, g int32) {
	c.moves[k].Source, c.at[k] = g, int32(len(c.sends[g]))
	c.sends[g] = append(c.sends[g], k)
}

func (c *chooser) drop(k int32) {
	list := c.sends[c.moves[k].Source]
	last := list[len(list)-1]
	list[c.at[k]], c.at[last] = last, c.at[k]
	c.sends[c.moves[k].Source] = list[:len(list)-1]
}

// relieve moves one unit of work from rank g to one that sends at least two less.
func (c *chooser) relieve(g int32) bool {
	for r := range c.by {
		c.by[r] = -1
	}
	c.by[g] = int32(len(c.moves)) // visited, without a predecessor
	c.queue = append(c.queue[:0], g)
	for at := 0; at < len(c.queue); at++ {
		r := c.queue[at]
		if len(c.sends[r]) <= len(c.sends[g])-2 {
			for r != g { // hand over along the path, from its end
				k := c.by[r]
				before := c.moves[k].Source
				c.drop(k)
				c.give(k, r)
				r = before
			}
			return true
		}
		for _, k := range c.sends[r] {
			for _, next := range c.moves[k].From {
				if c.by[next] < 0 {
					c.by[next] = k
					c.queue = append(c.queue, next)
				}
			}
		}
	}
	return false
}
