package load

import "fmt"

// Popularity returns the share of each expert in its layer's tokens, [layer][expert]; a layer without tokens has even
// shares. The result is global for Windows.Sum, and of one rank's requests for an entry of Windows.BySource. For a
// single request, use Requests.Popularity.
func Popularity(loads [][]float64) ([][]float64, error) {
	if err := Check(loads); err != nil {
		return nil, err
	}
	out := make([][]float64, len(loads))
	for l, row := range loads {
		out[l] = normalised(row)
	}
	return out, nil
}

// Requests counts the experts that each of the latest requests used. Memory is bounded: a new request replaces the
// least recently used one. Not for concurrent use.
type Requests struct {
	layers, experts, most int
	of                    map[string]*profile
	first, last           *profile // by time of the last use
}

// profile is sparse: a request uses few of the (layer, expert) pairs.
type profile struct {
	id         string
	tokens     map[[2]int]float64
	sum        []float64 // by layer
	prev, next *profile
}

// NewRequests remembers at most `most` requests.
func NewRequests(layers, experts, most int) (*Requests, error) {
	if layers < 1 || experts < 1 || most < 1 {
		return nil, fmt.Errorf("load: profiles of %d requests, %d layers, %d experts; at least 1 of each is needed", most, layers, experts)
	}
	return &Requests{layers: layers, experts: experts, most: most, of: map[string]*profile{}}, nil
}

// Add counts tokens that a request sent to an expert.
func (q *Requests) Add(id string, layer, expert int, tokens float64) error {
	if layer < 0 || layer >= q.layers || expert < 0 || expert >= q.experts {
		return fmt.Errorf("load: request %q: layer %d, expert %d; there are layers 0..%d with experts 0..%d",
			id, layer, expert, q.layers-1, q.experts-1)
	}
	p := q.of[id]
	held := 0.0
	if p != nil {
		held = p.sum[layer]
	}
	for _, v := range []float64{tokens, tokens + held} {
		if err := checkLoad(v); err != nil {
			return fmt.Errorf("load: request %q: layer %d, expert %d: %w", id, layer, expert, err)
		}
	}
	if p == nil {
		if len(q.of) == q.most {
			q.Forget(q.first.id)
		}
		p = &profile{id: id, tokens: map[[2]int]float64{}, sum: make([]float64, q.layers)}
		q.of[id] = p
	} else {
		q.unlink(p)
	}
	if p.prev = q.last; q.last != nil {
		q.last.next = p
	} else {
		q.first = p
	}
	q.last = p
	p.tokens[[2]int{layer, expert}] += tokens
	p.sum[layer] += tokens
	return nil
}

// Forget removes an ended request.
func (q *Requests) Forget(id string) {
	if p := q.of[id]; p != nil {
		q.unlink(p)
		delete(q.of, id)
	}
}

func (q *Requests) unlink(p *profile) {
	if p.prev != nil {
		p.prev.next = p.next
	} else {
		q.first = p.next
	}
	if p.next != nil {
		p.next.prev = p.prev
	} else {
		q.last = p.prev
	}
	p.prev, p.next = nil, nil
}

// Popularity of a request, [layer][expert]: its own counts plus `weight` tokens per layer of the prior (the posterior
// mean under a Dirichlet prior), so that a request with few tokens resembles the others. The prior is a Popularity, of
// the world or of the request's rank. An unknown request gets the prior.
func (q *Requests) Popularity(id string, prior [][]float64, weight float64) ([][]float64, error) {
	if err := Check(prior); err != nil {
		return nil, fmt.Errorf("prior of request %q: %w", id, err)
	}
	if len(prior) != q.layers || len(prior[0]) != q.experts {
		return nil, fmt.Errorf("load: prior of request %q has %d layers of %d experts; the model has %d of %d",
			id, len(prior), len(prior[0]), q.layers, q.experts)
	}
	if err := checkLoad(weight); err != nil || weight == 0 {
		return nil, fmt.Errorf("load: the prior of request %q weighs %v tokens; want a finite number above 0", id, weight)
	}
	out := make([][]float64, q.layers)
	for l, row := range prior {
		out[l] = normalised(row)
		if p := q.of[id]; p != nil {
			for e := range out[l] {
				out[l][e] = (weight*out[l][e] + p.tokens[[2]int{l, e}]) / (weight + p.sum[l])
			}
		}
	}
	return out, nil
}
