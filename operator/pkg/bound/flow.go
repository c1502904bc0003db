package bound

import "math"

// flow is a min-cost max-flow network, solved by a primal-dual method: shortest distances by Bellman-Ford with a queue,
// then all possible flow along shortest paths.
type flow struct {
	to, next []int
	left     []uint64 // capacity left
	cost     []int64
	head     []int
	dist     []int64
	busy     []bool // in the queue, or on the path to the sink; false for all nodes between calls
	at       []int
}

// newFlow returns a network without edges, with capacity for about `edges` of them.
func newFlow(nodes, edges int) *flow {
	f := &flow{head: make([]int, nodes), dist: make([]int64, nodes), busy: make([]bool, nodes), at: make([]int, nodes)}
	f.to, f.next = make([]int, 0, 2*edges), make([]int, 0, 2*edges)
	f.left, f.cost = make([]uint64, 0, 2*edges), make([]int64, 0, 2*edges)
	for i := range f.head {
		f.head[i] = -1
	}
	return f
}

func (f *flow) edge(a, b int, capacity, cost uint64) {
	for _, e := range []struct {
		from, to int
		left     uint64
		cost     int64
	}{{a, b, capacity, int64(cost)}, {b, a, 0, -int64(cost)}} {
		f.to, f.left, f.cost = append(f.to, e.to), append(f.left, e.left), append(f.cost, e.cost)
		f.next = append(f.next, f.head[e.from])
		f.head[e.from] = len(f.to) - 1
	}
}

// run sends as much as possible and returns its cost.
func (f *flow) run(source, sink int) uint64 {
	total := int64(0)
	for f.distances(source, sink) {
		copy(f.at, f.head)
		for {
			sent := f.send(source, sink, math.MaxUint64)
			if sent == 0 {
				break
			}
			total += int64(sent) * f.dist[sink]
		}
	}
	return uint64(total)
}

func (f *flow) distances(source, sink int) bool {
	for i := range f.dist {
		f.dist[i] = math.MaxInt64
	}
	f.dist[source] = 0
	queue := []int{source}
	for len(queue) > 0 {
		a := queue[0]
		queue = queue[1:]
		f.busy[a] = false
		for e := f.head[a]; e >= 0; e = f.next[e] {
			if b := f.to[e]; f.left[e] > 0 && f.dist[a]+f.cost[e] < f.dist[b] {
				f.dist[b] = f.dist[a] + f.cost[e]
				if !f.busy[b] {
					f.busy[b] = true
					queue = append(queue, b)
				}
			}
		}
	}
	return f.dist[sink] != math.MaxInt64
}

// send pushes flow from a along edges of shortest paths; at[] remembers exhausted edges.
func (f *flow) send(a, sink int, most uint64) uint64 {
	if a == sink {
		return most
	}
	f.busy[a] = true
	defer func() { f.busy[a] = false }()
	for ; f.at[a] >= 0; f.at[a] = f.next[f.at[a]] {
		e := f.at[a]
		b := f.to[e]
		if f.left[e] == 0 || f.busy[b] || f.dist[b] != f.dist[a]+f.cost[e] {
			continue
		}
		if sent := f.send(b, sink, min(most, f.left[e])); sent > 0 {
			f.left[e] -= sent
			f.left[e^1] += sent
			return sent
		}
	}
	return 0
}

// assignment is the cheapest perfect matching of n ranks and n positions.
func assignment(n int, cost []uint64) uint64 {
	f := newFlow(2*n+2, n*(n+2))
	for i := range n {
		f.edge(2*n, i, 1, 0)
		f.edge(n+i, 2*n+1, 1, 0)
		for p := range n {
			f.edge(i, n+p, 1, cost[i*n+p])
		}
	}
	return f.run(2*n, 2*n+1)
}
