package migration

// Rounds assigns a round to each move, so that no rank sends or receives more than one per round, and returns the
// number of rounds. It equals Degree, the minimum (Koenig 1916: a bipartite multigraph has an edge colouring with as
// many colours as its largest degree). Senders and receivers are the two sides, a round is a colour. Moves from the
// checkpoint occupy only their receiver.
func Rounds(moves []Move) int {
	colours := Degree(moves)
	side := int32(0)
	for _, m := range moves {
		side = max(side, m.To+1, m.Source+1)
	}
	c := colouring{colours: int32(colours), side: side, moves: moves, at: make([]int32, 2*int(side)*colours)}
	for i := range c.at {
		c.at[i] = -1
	}
	for k := range moves {
		c.colour(int32(k))
	}
	return colours
}

// colouring: vertex v < side is a receiver, v - side a sender.
type colouring struct {
	colours, side int32
	moves         []Move
	at            []int32 // [vertex*colours+colour] the move, or -1
}

func (c *colouring) slot(v, colour int32) *int32 { return &c.at[v*c.colours+colour] }

func (c *colouring) free(v int32) int32 {
	for k := range c.colours {
		if *c.slot(v, k) < 0 {
			return k
		}
	}
	panic("migration: more moves at a rank than its degree") // Degree counted them
}

func (c *colouring) colour(k int32) {
	m := &c.moves[k]
	to := c.free(m.To)
	if m.Source == Nowhere {
		m.Round = to
		*c.slot(m.To, to) = k
		return
	}
	sender := m.Source + c.side
	from := c.free(sender)
	if from != to {
		// The receiver lacks colour `to`, the sender lacks `from`. Exchange the colours on the path of alternating
		// moves that starts at the sender with `to`. It cannot end at the receiver, because the graph is bipartite.
		c.flip(sender, to, from)
	}
	m.Round = to
	*c.slot(m.To, to), *c.slot(sender, to) = k, k
}

// flip exchanges colours a and b on the path from v whose first move has colour a.
func (c *colouring) flip(v, a, b int32) {
	var path []int32
	for u, colour := v, a; ; {
		k := *c.slot(u, colour)
		if k < 0 {
			break
		}
		path = append(path, k)
		if u == c.moves[k].To {
			if u = c.moves[k].Source + c.side; c.moves[k].Source == Nowhere {
				break
			}
		} else {
			u = c.moves[k].To
		}
		colour = a + b - colour
	}
	for _, k := range path {
		m := &c.moves[k]
		*c.slot(m.To, m.Round) = -1
		if m.Source != Nowhere {
			*c.slot(m.Source+c.side, m.Round) = -1
		}
	}
	for _, k := range path {
		m := &c.moves[k]
		m.Round = a + b - m.Round
		*c.slot(m.To, m.Round) = k
		if m.Source != Nowhere {
			*c.slot(m.Source+c.side, m.Round) = k
		}
	}
}
