package simulator

// Group is an attention group as routers and composers see it.
type Group struct {
	Capacity int // tokens of KV
	Reserved int // of these by live requests: prompts and maximum outputs
	Decoding int // requests that get a token in each step
	Queued   int // prompt tokens of admitted requests to compute
}

// Router selects the group of a request.
type Router interface {
	// Route returns a group with room for `need` tokens; -1 if there is none: the request waits, and later ones too.
	// cached[g] is the number of tokens of its prompt in the group's cache.
	Route(need, prompt int, groups []Group, cached []int) int
}

// Composer sets the number of prompt tokens that each group computes in the next step.
type Composer interface {
	Compose(budget int, groups []Group, prompts []int)
}

// LeastWork routes to the group with the least work, including the work that the request would add.
type LeastWork struct{}

// Route returns the group with the least work: prompt tokens to compute plus a constant per decoding request.
func (LeastWork) Route(need, prompt int, groups []Group, cached []int) int {
	best, least := -1, 0
	for g := range groups {
		if groups[g].Reserved+need > groups[g].Capacity {
			continue
		}
		// A decoding request counts as this many prompt tokens, otherwise all requests with cached prompts would go to
		// one group.
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

// Compose splits the budget.
func (Even) Compose(budget int, groups []Group, prompts []int) {
	share := budget / len(groups)
	for g := range groups {
		// At least a minimum, otherwise prompts would starve behind many decoding requests.
		prompts[g] = min(groups[g].Queued, max(share-groups[g].Decoding, share/8))
	}
}
