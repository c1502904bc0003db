package planner

import (
	"math"
	"slices"
)

// worth of an expert to a group that holds part of it: the bytes that need not move. For all other groups it is 0, so
// these lists are only as long as there are holders.
type worth struct {
	group int
	value int64
}

// assignExperts assigns experts to n groups so that the sizes differ by at most one and the total worth is maximal.
// spare[j] is how often group j got the longer share so far; of equal choices, the group with the fewest gets it.
func assignExperts(n int, worths [][]worth, spare []int) []int {
	if owners, ok := assignSingle(n, worths, spare); ok {
		return owners
	}
	value := make([]int64, len(worths)*n)
	for e, of := range worths {
		for _, w := range of {
			value[e*n+w.group] = w.value
		}
	}
	return newTransport(len(worths), n, value, spare).solve()
}

// assignSingle is exact if every expert is worth something, always the same, to at most one group. Group j keeps
// min(held, its size) of its experts, so the longer shares go first to groups that hold more than the shorter one.
func assignSingle(n int, worths [][]worth, spare []int) ([]int, bool) {
	value := int64(0)
	owners := make([]int, len(worths))
	held := make([]int, n)
	for e, of := range worths {
		owners[e] = -1
		if len(of) > 1 {
			return nil, false
		}
		for _, w := range of {
			if value != 0 && w.value != value {
				return nil, false
			}
			owners[e], value = w.group, w.value
			held[w.group]++
		}
	}
	short, extra := len(worths)/n, len(worths)%n
	order := make([]int, n) // in which they get longer shares
	for j := range order {
		order[j] = j
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if a, b := held[a] > short, held[b] > short; a != b {
			if a {
				return -1
			}
			return 1
		}
		return spare[a] - spare[b]
	})
	size := make([]int, n)
	for i, j := range order {
		size[j] = short
		if i < extra {
			size[j]++
		}
	}
	// Groups above their size release their highest experts; the free ones fill up in order.
	left := append([]int(nil), size...)
	for e, j := range owners {
		if j < 0 {
			continue
		}
		if left[j] == 0 {
			owners[e] = -1
			continue
		}
		left[j]--
	}
	next := 0
	for e, j := range owners {
		if j >= 0 {
			continue
		}
		for left[next] == 0 {
			next++
		}
		owners[e] = next
		left[next]--
	}
	return owners, true
}

// transport solves the transportation problem by successive shortest paths: experts enter one by one, each along the
// cheapest chain of moves between groups (Ahuja, Magnanti, Orlin, Network Flows, 9.7). Groups take `short` experts
// each; one more goes through a common node of capacity `extra`, which keeps sizes within one.
type transport struct {
	n, short, extra int
	value           []int64 // scaled so that the tie-break below never outweighs a real unit
	spare           []int
	owners          []int
	of              [][]int   // experts of each group
	move            [][]int64 // move[a][b]: loss of moving a's cheapest expert to b
	mover           [][]int
	longer          int // groups that have short+1
}

// unreachable exceeds the cost of any path, and twice it does not overflow.
const unreachable = math.MaxInt64 / 4

func newTransport(experts, n int, value []int64, spare []int) *transport {
	t := &transport{n: n, short: experts / n, extra: experts % n, spare: make([]int, n),
		owners: make([]int, experts), of: make([][]int, n), move: make([][]int64, n), mover: make([][]int, n)}
	most := int64(1)
	for _, w := range value {
		most = max(most, w)
	}
	const scale = 1 << 20
	t.value = value
	if most < 1<<34 {
		t.value = make([]int64, len(value))
		for i, w := range value {
			t.value[i] = w * scale
		}
		// A path pays at most n - 1 of these, so their sum stays below one unit.
		for j := range spare {
			t.spare[j] = min(spare[j], scale/n)
		}
	}
	for j := range n {
		t.move[j], t.mover[j] = make([]int64, n), make([]int, n)
		t.refresh(j)
	}
	return t
}

func (t *transport) refresh(a int) {
	for b := range t.n {
		t.move[a][b] = unreachable
	}
	for _, e := range t.of[a] {
		own := t.value[e*t.n+a]
		for b, w := range t.value[e*t.n : e*t.n+t.n] {
			if loss := own - w; loss < t.move[a][b] {
				t.move[a][b], t.mover[a][b] = loss, e
			}
		}
	}
}

func (t *transport) solve() []int {
	for e := range t.owners {
		t.insert(e)
	}
	return t.owners
}

// insert finds the cheapest path for e by Bellman-Ford over the groups and the common
// node (index n); there are no negative cycles, as the flow so far is optimal.
func (t *transport) insert(e int) {
	n := t.n
	dist, from := make([]int64, n+1), make([]int, n+1)
	for j := range n {
		dist[j], from[j] = -t.value[e*n+j], -1
	}
	dist[n] = unreachable
	for changed := true; changed; {
		changed = false
		relax := func(a, b int, cost int64) {
			if dist[a]+cost < dist[b] {
				dist[b], from[b], changed = dist[a]+cost, a, true
			}
		}
		for a := range n {
			for b := range n {
				relax(a, b, t.move[a][b]) // from a group to itself: free and useless
			}
			if len(t.of[a]) <= t.short {
				relax(a, n, int64(t.spare[a]))
			} else {
				relax(n, a, -int64(t.spare[a]))
			}
		}
	}
	end := -1
	for j := range n {
		if len(t.of[j]) < t.short && (end < 0 || dist[j] < dist[end]) {
			end = j
		}
	}
	if t.longer < t.extra && (end < 0 || dist[n] < dist[end]) {
		end = n
		t.longer++
	}
	// Walk back: a group receives the expert that its predecessor releases.
	touched := make([]int, 0, 8)
	for at := end; at >= 0; at = from[at] {
		before := from[at]
		if at == n {
			continue
		}
		if before == n {
			continue // the group passes its longer share on, and releases an expert below
		}
		if before < 0 {
			t.owners[e] = at
			t.of[at] = append(t.of[at], e)
		} else {
			f := t.mover[before][at]
			t.owners[f] = at
			t.of[at] = append(t.of[at], f)
			gives := slices.Index(t.of[before], f)
			t.of[before] = slices.Delete(t.of[before], gives, gives+1)
			touched = append(touched, before)
		}
		touched = append(touched, at)
	}
	for _, j := range touched {
		t.refresh(j)
	}
}

// assignPositions finds the permutation at[position] = rank index with the largest total
// of value[rank*n+position]: the Hungarian method with potentials, O(n^3).
func assignPositions(n int, value []int64) []int {
	u, v := make([]int64, n+1), make([]int64, n+1)
	match, way := make([]int, n+1), make([]int, n+1)
	least, used := make([]int64, n+1), make([]bool, n+1)
	for i := 1; i <= n; i++ {
		match[0] = i
		for j := range least {
			least[j], used[j] = math.MaxInt64, false
		}
		j0 := 0
		for {
			used[j0] = true
			i0, delta, j1 := match[j0], int64(math.MaxInt64), 0
			for j := 1; j <= n; j++ {
				if used[j] {
					continue
				}
				if cost := -value[(i0-1)*n+j-1] - u[i0] - v[j]; cost < least[j] {
					least[j], way[j] = cost, j0
				}
				if least[j] < delta {
					delta, j1 = least[j], j
				}
			}
			for j := 0; j <= n; j++ {
				if used[j] {
					u[match[j]] += delta
					v[j] -= delta
				} else {
					least[j] -= delta
				}
			}
			if j0 = j1; match[j0] == 0 {
				break
			}
		}
		for j0 != 0 {
			match[j0] = match[way[j0]]
			j0 = way[j0]
		}
	}
	at := make([]int, n)
	for j := 1; j <= n; j++ {
		at[j-1] = match[j] - 1
	}
	return at
}
