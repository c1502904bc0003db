package placement

import "slices"

// queues hold the ranks with room, one heap by load for each speed: among ranks of a speed
// the one with least load is done first, whatever is added.
type queues struct {
	heaps [][]queued
	class []int32 // [rank]
	order []int32
}

func (q *queues) fill(s *state) {
	q.class = grow(q.class, s.ranks)
	q.order = append(q.order[:0], s.live...)
	slices.SortStableFunc(q.order, func(a, b int32) int {
		switch {
		case s.slow[a] < s.slow[b]:
			return -1
		case s.slow[a] > s.slow[b]:
			return 1
		}
		return 0
	})
	n := 0
	for i, g := range q.order {
		if i == 0 || s.slow[g] != s.slow[q.order[i-1]] {
			if n++; n > len(q.heaps) {
				q.heaps = append(q.heaps, nil)
			}
			q.heaps[n-1] = q.heaps[n-1][:0]
		}
		q.class[g] = int32(n - 1)
		q.heaps[n-1] = append(q.heaps[n-1], queued{0, g}) // nothing lies there yet: in order of ranks it is a heap
	}
	q.heaps = q.heaps[:n]
}

// queued is a rank with its load, which does not change while the rank waits.
type queued struct {
	load float64
	rank int32
}

func (a queued) before(b queued) bool {
	return a.load < b.load || a.load == b.load && a.rank < b.rank
}

// first is the class whose first rank would be first done with its load and share; -1: no
// rank has room.
func (q *queues) first(s *state, share float64) int {
	best, least := -1, 0.0
	for c, h := range q.heaps {
		if len(h) == 0 {
			continue
		}
		if t := (h[0].load + share) * s.slow[h[0].rank]; best < 0 || t < least {
			best, least = c, t
		}
	}
	return best
}

// pop takes the first rank of a class out.
func (q *queues) pop(class int) int32 {
	h := q.heaps[class]
	g, last := h[0].rank, h[len(h)-1]
	q.heaps[class] = h[:len(h)-1]
	if len(h) > 1 {
		q.replace(class, last)
	}
	return g
}

// replace puts x in the place of the first rank of a class.
func (q *queues) replace(class int, x queued) {
	h, i := q.heaps[class], 0
	for {
		k := 2*i + 1
		if k >= len(h) {
			break
		}
		if k+1 < len(h) && h[k+1].before(h[k]) {
			k++
		}
		if !h[k].before(x) {
			break
		}
		h[i] = h[k]
		i = k
	}
	h[i] = x
}

func (q *queues) push(s *state, g int32) {
	x := queued{s.load[g], g}
	q.heaps[q.class[g]] = append(q.heaps[q.class[g]], x)
	h := q.heaps[q.class[g]]
	i := len(h) - 1
	for i > 0 && x.before(h[(i-1)/2]) {
		h[i] = h[(i-1)/2]
		i = (i - 1) / 2
	}
	h[i] = x
}
