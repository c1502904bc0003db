package placement

import (
	"cmp"
	"slices"
)

// queues hold the ranks with room, one heap by load for each speed: among ranks of one speed, the one with least load
// finishes first, whatever is added.
type queues struct {
	heaps [][]uint64 // ranks by load, which does not change while they are in the heap
	low   uint64
	class []int32 // [rank]
	order []int32
}

func (q *queues) fill(s *state) {
	q.low = lowBits(s.ranks)
	q.class = grow(q.class, s.ranks)
	q.order = append(q.order[:0], s.live...)
	slices.SortStableFunc(q.order, func(a, b int32) int { return cmp.Compare(s.slow[a], s.slow[b]) })
	n := 0
	for i, g := range q.order {
		if i == 0 || s.slow[g] != s.slow[q.order[i-1]] {
			if n++; n > len(q.heaps) {
				q.heaps = append(q.heaps, nil)
			}
			q.heaps[n-1] = q.heaps[n-1][:0]
		}
		q.class[g] = int32(n - 1)
		q.heaps[n-1] = append(q.heaps[n-1], leastFirst(0, g, q.low)) // all loads are 0: in order of ranks it is a heap
	}
	q.heaps = q.heaps[:n]
}

// first is the class whose first rank would finish first with its load and share; -1: no rank has room.
func (q *queues) first(s *state, share float64) int {
	best, least := -1, 0.0
	for c, h := range q.heaps {
		if len(h) == 0 {
			continue
		}
		g := h[0] & q.low
		if t := (s.load[g] + share) * s.slow[g]; best < 0 || t < least {
			best, least = c, t
		}
	}
	return best
}

// head is the first rank of a class.
func (q *queues) head(class int) int32 { return int32(q.heaps[class][0] & q.low) }

// pop removes the first rank of a class.
func (q *queues) pop(class int) int32 {
	h := q.heaps[class]
	g, last := q.head(class), h[len(h)-1]
	q.heaps[class] = h[:len(h)-1]
	if len(h) > 1 {
		sink(q.heaps[class], 0, last)
	}
	return g
}

// later moves the first rank of a class to its place by its current load.
func (q *queues) later(class int, s *state) {
	g := q.head(class)
	sink(q.heaps[class], 0, leastFirst(s.load[g], g, q.low))
}

func (q *queues) push(s *state, g int32) {
	c := q.class[g]
	q.heaps[c] = rise(q.heaps[c], leastFirst(s.load[g], g, q.low))
}
