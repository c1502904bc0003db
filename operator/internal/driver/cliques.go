package driver

// largestWhole returns the largest set of the vertices 0..n-1 without a cut between any two. Of equal sets it returns
// the first in the order of numbers. cut is symmetric.
//
// It is exact for searches of fewer than wholeBudget steps. Cuts of real networks (single ranks, halves) stay below
// that. Beyond, it returns the best set found so far, which is a valid one.
func largestWhole(n int, cut func(i, j int) bool) []int {
	s := wholeSearch{cut: cut}
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	s.grow(nil, all)
	return s.best
}

const wholeBudget = 200_000

type wholeSearch struct {
	cut   func(i, j int) bool
	best  []int
	found bool
	steps int
}

// grow tries all sets of chosen and some candidates. Candidates reach all chosen vertices and are in order. Taking a
// candidate is tried before leaving it, so the first set of its size is the preferred one.
func (s *wholeSearch) grow(chosen, candidates []int) {
	if s.steps++; s.steps > wholeBudget && s.found {
		return
	}
	if len(candidates) == 0 {
		if !s.found || len(chosen) > len(s.best) {
			s.best, s.found = append([]int(nil), chosen...), true
		}
		return
	}
	if s.found && len(chosen)+s.atMost(candidates) <= len(s.best) {
		return
	}
	first, rest := candidates[0], candidates[1:]
	var reached []int
	for _, c := range rest {
		if !s.cut(first, c) {
			reached = append(reached, c)
		}
	}
	s.grow(append(chosen[:len(chosen):len(chosen)], first), reached)
	if len(reached) < len(rest) { // a vertex without a cut is in every largest set
		s.grow(chosen, rest)
	}
}

// atMost bounds the largest set: of two vertices with a cut between them, one is out.
func (s *wholeSearch) atMost(candidates []int) int {
	paired := make([]bool, len(candidates))
	out := len(candidates)
	for i := range candidates {
		for j := i + 1; j < len(candidates) && !paired[i]; j++ {
			if !paired[j] && s.cut(candidates[i], candidates[j]) {
				paired[i], paired[j] = true, true
				out--
			}
		}
	}
	return out
}
