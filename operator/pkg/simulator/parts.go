package simulator

// Group is what routers and composers see of an attention group.
type Group struct {
	Capacity int // tokens of KV
	Reserved int // of these by live requests: their prompts and all they may generate
	Decoding int // requests that get a token in each step
	Queued   int // prompt tokens of admitted requests, to be computed
}

// Router says which group gets a request.
type Router interface {
	// Route gives the group, one with room for `need` tokens; -1 if there is none: the request waits, and those behind it.
	// cached[g] are tokens of its prompt that the group has.
	Route(need, prompt int, groups []Group, cached []int) int
}

// Composer says how many prompt tokens each group computes in the next step.
type Composer interface {
	Compose(budget int, groups []Group, prompts []int)
}

// LeastWork routes to the group that has least to compute, counting what the request would add to it.
type LeastWork struct{}

// Route to the group with the fewest prompt tokens to compute; then to that with the fewest decoding requests.
func (LeastWork) Route(need, prompt int, groups []Group, cached []int) int {
	best, least := -1, 0
	for g := range groups {
		if groups[g].Reserved+need > groups[g].Capacity {
			continue
		}
		// A decoding request counts as so many prompt tokens, lest requests with cached prompts all go to one group.
		const decodingCounts = 16
		work := groups[g].Queued + prompt - cached[g] + decodingCounts*groups[g].Decoding
		if best < 0 || work < least {
			best, least = g, work
		}
	}
	return best
}

// Even gives each group the same share of the step's tokens; its decoding requests come first (chunked prefill, as Sarathi-Serve).
type Even struct{}

// Compose shares of the budget.
func (Even) Compose(budget int, groups []Group, prompts []int) {
	share := budget / len(groups)
	for g := range groups {
		// At least some, or prompts would starve behind many decoding requests.
		prompts[g] = min(groups[g].Queued, max(share-groups[g].Decoding, share/8))
	}
}
