package placement

import "math"

// network is source -> expert -> rank -> sink, for Dinic's maximum flow with real
// capacities. Nodes: 0 source, 1 sink, then experts, then ranks.
type network struct {
	load    []float64
	experts int
	arcs    []arc // arc k and k^1 are each other's reverse
	out     [][]int32
	level   []int32 // after a flow -1 for nodes not on the source's side; before it 0 for all
	at      []int
	slotArc []int32 // [slot] its arc, -1 if empty
	drain   []int32 // [rank] its arc to the sink
	epsilon float64
}

type arc struct {
	to   int32
	room float64
}

func newNetwork(load []float64, slots []int32, rankOf []int, ranks int) *network {
	n := &network{load: load, experts: len(load), out: make([][]int32, 2+len(load)+ranks), slotArc: make([]int32, len(slots))}
	n.level, n.at = make([]int32, len(n.out)), make([]int, len(n.out))
	for e := range load {
		n.add(0, 2+e)
	}
	for g := range ranks {
		n.drain = append(n.drain, n.add(2+n.experts+g, 1))
	}
	for j, e := range slots {
		if n.slotArc[j] = -1; e != Empty {
			n.slotArc[j] = n.add(2+int(e), 2+n.experts+rankOf[j])
		}
	}
	return n
}

func (n *network) add(from, to int) int32 {
	k := int32(len(n.arcs))
	n.arcs = append(n.arcs, arc{to: int32(to)}, arc{to: int32(from)})
	n.out[from] = append(n.out[from], k)
	n.out[to] = append(n.out[to], k^1)
	return k
}

// bound is the load of the experts on the source's side of the last cut over the speed of the ranks there. Before the
// first flow, these are all.
func (n *network) bound(ranks []Rank, t float64) float64 {
	load, speed := 0.0, 0.0
	reached := make([]bool, len(ranks))
	for e, w := range n.load {
		if n.level[2+e] < 0 {
			continue
		}
		load += w
		for _, k := range n.out[2+e] {
			if g := int(n.arcs[k].to) - 2 - n.experts; g >= 0 {
				reached[g] = true
			}
		}
	}
	for g, r := range ranks {
		if reached[g] {
			speed += r.speed()
		}
	}
	if speed == 0 {
		return t
	}
	return load / speed
}

// flow finds a maximum flow with peak t. Rounding may leave up to epsilon unserved.
func (n *network) flow(ranks []Rank, t, total float64) {
	n.epsilon = total * 1e-13
	for k := range n.arcs {
		n.arcs[k].room = 0
	}
	for e, w := range n.load {
		n.arcs[2*e].room = w
	}
	for g, k := range n.drain {
		n.arcs[k].room = t * ranks[g].speed()
	}
	for _, k := range n.slotArc {
		if k >= 0 {
			n.arcs[k].room = math.Inf(1)
		}
	}
	for n.levels() {
		clear(n.at)
		for n.push(0, math.Inf(1)) > 0 {
		}
	}
}

func (n *network) levels() bool {
	for v := range n.level {
		n.level[v] = -1
	}
	n.level[0] = 0
	queue := []int32{0}
	for len(queue) > 0 {
		v := queue[0]
		queue = queue[1:]
		for _, k := range n.out[v] {
			if a := n.arcs[k]; a.room > n.epsilon && n.level[a.to] < 0 {
				n.level[a.to] = n.level[v] + 1
				queue = append(queue, a.to)
			}
		}
	}
	return n.level[1] >= 0
}

func (n *network) push(v int32, most float64) float64 {
	if v == 1 {
		return most
	}
	for ; n.at[v] < len(n.out[v]); n.at[v]++ {
		k := n.out[v][n.at[v]]
		a := n.arcs[k]
		if a.room <= n.epsilon || n.level[a.to] != n.level[v]+1 {
			continue
		}
		if f := n.push(a.to, min(most, a.room)); f > 0 {
			n.arcs[k].room -= f
			n.arcs[k^1].room += f
			return f
		}
	}
	return 0
}

// weights returns the shares of an expert's load that flow through its slots.
func (n *network) weights(slots []int32, weight []float64) {
	through := make([]float64, n.experts)
	for j, e := range slots {
		if e != Empty {
			through[e] += n.arcs[n.slotArc[j]^1].room
		}
	}
	for j, e := range slots {
		if e != Empty && through[e] > 0 {
			weight[j] = n.arcs[n.slotArc[j]^1].room / through[e]
		}
	}
}
