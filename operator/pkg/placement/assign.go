package placement

import "math"

// assignment solves the linear assignment problem by shortest augmenting paths (Jonker and Volgenant 1987): O(n^3) at
// worst, near n^2 if rows rarely compete for a column.
type assignment struct {
	u, v, reach []float64 // duals of rows and columns; distance of columns
	rowOf, from []int32   // [column] its row, or -1; the previous column on the path
	done        []bool
}

// heaviest assigns a distinct column to each row so that the sum of weights is maximal; weight is [row*n+column],
// columns is the result by row.
func (a *assignment) heaviest(n int, weight []float64, columns []int32) {
	a.u, a.v, a.reach = grow(a.u, n), grow(a.v, n), grow(a.reach, n)
	a.rowOf, a.from, a.done = grow(a.rowOf, n), grow(a.from, n), grow(a.done, n)
	clear(a.v)
	for i := range n {
		a.rowOf[i], columns[i] = -1, -1
	}
	for i := range n { // a row whose best column is free takes it; the others search
		row := weight[i*n : (i+1)*n]
		best, most := 0, row[0]
		for j, w := range row {
			if w > most || w == most && a.rowOf[best] >= 0 && a.rowOf[j] < 0 {
				best, most = j, w
			}
		}
		a.u[i] = -most
		if a.rowOf[best] < 0 {
			a.rowOf[best], columns[i] = int32(i), int32(best)
		}
	}
	for i := range n {
		if columns[i] < 0 {
			a.augment(n, weight, i)
		}
	}
	for j := range n {
		columns[a.rowOf[j]] = int32(j)
	}
}

func (a *assignment) augment(n int, weight []float64, row int) {
	reach, done, from, v, rowOf := a.reach[:n], a.done[:n], a.from[:n], a.v[:n], a.rowOf[:n] // hoisted out of the loops
	for j := range reach {
		reach[j], done[j], from[j] = math.Inf(1), false, -1
	}
	i, last, base := row, -1, 0.0
	for {
		next, least := -1, math.Inf(1)
		above := base - a.u[i]
		for j, w := range weight[i*n : (i+1)*n] {
			if done[j] {
				continue
			}
			d := reach[j]
			if now := above - w - v[j]; now < d {
				d, reach[j], from[j] = now, now, int32(last)
			}
			if d < least || d == least && rowOf[j] < 0 {
				next, least = j, d
			}
		}
		a.done[next] = true
		last, base = next, least
		if a.rowOf[next] < 0 {
			break
		}
		i = int(a.rowOf[next])
	}
	a.u[row] += base
	for j := range n {
		if a.done[j] && j != last {
			a.v[j] += a.reach[j] - base
			a.u[a.rowOf[j]] += base - a.reach[j]
		}
	}
	for j := last; j >= 0; {
		before := int(a.from[j])
		if before < 0 {
			a.rowOf[j] = int32(row)
		} else {
			a.rowOf[j] = a.rowOf[before]
		}
		j = before
	}
}
