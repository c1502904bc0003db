package kernels

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"tangram.dev/operator/pkg/geometry"
)

// Shape of a world in which all layers are alike: docs/architecture.md, section 2. Both groups divide Ranks.
type Shape struct {
	Ranks          int // P
	ExpertGroup    int // g: ranks that share an expert; 1 is mode ExpertParallel, P is mode TensorParallel
	AttentionGroup int // t: ranks that share a request's heads
}

// Expert is the shape of mode Expert.
func Expert(ranks int) Shape { return Shape{ranks, 1, 1} }

// Tensor is the shape of mode Tensor.
func Tensor(ranks int) Shape { return Shape{ranks, ranks, ranks} }

// TensorByData is the shape of mode TensorParallel for engines that keep all heads of a request on one rank: only
// experts are split.
func TensorByData(ranks int) Shape { return Shape{ranks, ranks, 1} }

// Groups returns the number of groups of ranks that hold the same requests: P / t.
func (s Shape) Groups() int { return s.Ranks / s.AttentionGroup }

// AllRanks stands for a group of all ranks of the world in a Kind.
const AllRanks = 0

// Kind is the common part of shapes of several widths: their mode, or the groups of a hybrid; a group of all ranks is
// AllRanks.
type Kind struct{ ExpertGroup, AttentionGroup int }

// Kind of a shape. One rank alone has the kind of mode TensorParallel, because it holds all of everything.
func (s Shape) Kind() Kind {
	group := func(n int) int {
		if n == s.Ranks {
			return AllRanks
		}
		return n
	}
	return Kind{group(s.ExpertGroup), group(s.AttentionGroup)}
}

// On returns the shape on `ranks` ranks. It may be invalid: Check verifies that the groups divide them.
func (k Kind) On(ranks int) Shape {
	group := func(n int) int {
		if n == AllRanks {
			return ranks
		}
		return n
	}
	return Shape{ranks, group(k.ExpertGroup), group(k.AttentionGroup)}
}

// Check that the groups divide the ranks.
func (s Shape) Check() error {
	if s.Ranks < 1 || s.ExpertGroup < 1 || s.AttentionGroup < 1 || s.Ranks%s.ExpertGroup != 0 || s.Ranks%s.AttentionGroup != 0 {
		return fmt.Errorf("shape %v: groups must divide the ranks, and be at least 1", s)
	}
	return nil
}

func (s Shape) String() string {
	switch s {
	case Expert(s.Ranks):
		return fmt.Sprintf("ExpertParallel/%d", s.Ranks)
	case Tensor(s.Ranks):
		return fmt.Sprintf("TensorParallel/%d", s.Ranks)
	}
	return fmt.Sprintf("g%d,t%d/%d", s.ExpertGroup, s.AttentionGroup, s.Ranks)
}

// Load of one attention group in a step.
type Load struct {
	Decode  int     // requests that get one token
	Context int     // sum of their tokens of context
	Prefill int     // prompt tokens
	Chunks  float64 // seconds of attention of the prompts' chunks: the sum of Step.Chunk
}

// Step adds up the kernels of one step in one shape: projections and attention of the busiest group, collectives, fused
// MoE. It omits sampling, the head, norms and the host, which no table has. Immutable; safe for concurrent use.
type Step struct {
	shape      Shape
	layers     float64
	beyond     float64 // doublings of the ranks beyond the measured widths; 0: within
	moe        grid    // seconds of a layer by tokens of all ranks
	all        grid    // of the collective around the experts, by tokens of all ranks
	dense      grid    // projections and the all-reduce of attention, by tokens of a group
	context    grid    // prefill attention of the first n tokens of a prompt
	generation []grid  // by place of requests, over the mean context; one grid per point of the grid of requests
}

// NewStep compiles the table for one engine's MoE kernel, routing ("balanced", "power_law_1.2", ...) and shape. The
// error names the kernel that was not measured.
func NewStep(t *Table, v *geometry.View, engine, routing string, shape Shape) (*Step, error) {
	if err := shape.Check(); err != nil {
		return nil, err
	}
	if v.MoELayers() != int(v.Proto.Layers) {
		return nil, fmt.Errorf("kernels: %s has dense layers, of which there are no tables", v.Proto.Model)
	}
	p := parts{t: t, v: v, shape: shape}
	s := &Step{shape: shape, layers: float64(v.Proto.Layers)}
	moe, err := t.curve(key{opMoE, engine, routing, shape.ExpertGroup, shape.Ranks / shape.ExpertGroup})
	if err != nil {
		return nil, err
	}
	s.moe = gridOf(func(x float64) float64 { return moe.at(x) * 1e-6 })
	if s.all, err = p.around(); err != nil {
		return nil, err
	}
	if s.dense, err = p.dense(); err != nil {
		return nil, err
	}
	if err := p.attention(s); err != nil {
		return nil, err
	}
	return s, nil
}

// Beyond returns by how many doublings of the ranks the step was extrapolated from the widest measured world; 0: not at
// all.
func (s *Step) Beyond() float64 { return s.beyond }

// Shape returns the shape of the step.
func (s *Step) Shape() Shape { return s.shape }

// Chunk returns the seconds of attention, over all layers, of a prompt's tokens from..to-1, with the earlier ones
// cached.
func (s *Step) Chunk(from, to int) float64 {
	// Causal attention of the chunk is that of the whole minus that of the start, but at least that of the chunk alone.
	return s.layers * max(s.context.at(to)-s.context.at(from), s.context.at(to-from))
}

// Seconds of a step. The groups wait for the busiest; the experts process the tokens of all.
func (s *Step) Seconds(loads []Load) float64 { return s.Skewed(loads, 1) }

// Skewed is Seconds with an imbalance: the busiest rank's experts get `imbalance` times the mean, beyond the skew of
// the table's routing. They take as long as in a world with that many times the tokens. If all ranks share each expert,
// no rank is busiest.
func (s *Step) Skewed(loads []Load, imbalance float64) float64 {
	slowest, tokens := 0.0, 0
	for i := range loads {
		l := &loads[i]
		n := l.Decode + l.Prefill
		if n == 0 {
			continue
		}
		tokens += n
		slowest = max(slowest, s.own(l))
	}
	if tokens == 0 {
		return 0
	}
	executed := tokens
	if s.shape.ExpertGroup < s.shape.Ranks {
		executed = int(math.Round(float64(tokens) * imbalance))
	}
	return slowest + s.layers*(s.moe.at(executed)+s.all.at(tokens))
}

func (s *Step) decode(requests, context int) float64 {
	i, rest := place(requests)
	context = max(context, 1)
	low, high := s.generation[i].at(context), s.generation[i+1].at(context)
	return low + (high-low)*rest
}

// parts builds the parts of a step from the table.
type parts struct {
	t     *Table
	v     *geometry.View
	shape Shape
}

// mostRequests is the limit of the generation table (data/README.md).
const mostRequests = 512

func (p parts) attention(s *Step) error {
	group := p.shape.AttentionGroup
	q, kv := int(p.v.Proto.QueryHeads)/group, max(1, int(p.v.Proto.KvHeads)/group)
	context, err := p.t.curve(key{op: opContext, i: q, j: kv})
	if err != nil {
		return err
	}
	last := context[len(context)-1]
	s.context = gridOf(func(x float64) float64 {
		if x > last.x { // the quadratic part dominates there
			return last.us * 1e-6 * (x / last.x) * (x / last.x)
		}
		return context.at(x) * 1e-6
	})
	k := key{op: opGeneration, i: q, j: kv}
	measured := p.t.surface[k]
	if len(measured) == 0 {
		return fmt.Errorf("kernels: %s: %s was not measured", p.t.model, k)
	}
	requests := slices.DeleteFunc(slices.Sorted(maps.Keys(measured)), func(n int) bool { return n > mostRequests })
	s.generation = make([]grid, gridSize)
	across := make(curve, 0, len(requests))
	for i := range s.generation {
		s.generation[i] = make(grid, gridSize)
	}
	for c := range gridSize {
		size := sizeAt(c)
		across = across[:0]
		for _, n := range requests {
			m := measured[n]
			// Beyond the measured sizes for a number of requests, the last size gives the cost of a token.
			across = append(across, point{float64(n), m.at(size)})
		}
		for i := range s.generation {
			s.generation[i][c] = across.at(sizeAt(i)) * 1e-6
		}
	}
	return nil
}

// dense returns the projections before and after attention and, if its heads are split, the all-reduce after it.
func (p parts) dense() (grid, error) {
	g := p.v.Proto
	group := p.shape.AttentionGroup
	hidden, heads := int(g.Hidden), int(g.QueryHeads*g.HeadDim)/group
	in, err := p.t.curve(key{op: opGEMM, i: heads, j: hidden})
	if err != nil {
		return nil, err
	}
	out, err := p.t.curve(key{op: opGEMM, i: hidden, j: heads})
	if err != nil {
		return nil, err
	}
	// Queries, keys and values are one matrix; only the queries' width was measured, so scale it in proportion.
	wider := 1 + 2*float64(max(1, int(g.KvHeads)/group)*int(g.HeadDim))/float64(heads)
	reduce := func(float64) float64 { return 0 }
	if group > 1 {
		if reduce, err = p.reduce(group); err != nil {
			return nil, err
		}
	}
	return gridOf(func(x float64) float64 { return (in.at(x)*wider+out.at(x))*1e-6 + reduce(x) }), nil
}

// reduce returns an all-reduce of the hidden states of x tokens, by the faster kernel.
func (p parts) reduce(ranks int) (func(x float64) float64, error) {
	custom, err := p.t.curve(key{op: opReduce, i: ranks})
	if err != nil {
		return nil, err
	}
	nccl, err := p.t.curve(key{op: opReduceNCCL, i: ranks})
	if err != nil {
		return nil, err
	}
	bytes := 2 * float64(p.v.Proto.Hidden)
	return func(x float64) float64 { return math.Min(custom.at(x*bytes), nccl.at(x*bytes)) * 1e-6 }, nil
}

// MeasuredRanks is the largest measured width. DeepEP was measured on a whole node only; for fewer ranks the same cost
// per token of a rank is assumed.
const MeasuredRanks = 8

// around returns the collectives before and after the experts, by tokens of all ranks.
func (p parts) around() (grid, error) {
	ranks := p.shape.Ranks
	switch {
	case ranks == 1:
		return gridOf(func(float64) float64 { return 0 }), nil
	case p.shape.AttentionGroup == ranks: // every rank has all tokens
		reduce, err := p.reduce(ranks)
		if err != nil {
			return nil, err
		}
		return gridOf(reduce), nil
	case p.shape.ExpertGroup == 1:
		few, err := p.t.curve(key{op: opLowLatency, i: MeasuredRanks})
		if err != nil {
			return nil, err
		}
		many, err := p.t.curve(key{op: opNormal, i: MeasuredRanks})
		if err != nil {
			return nil, err
		}
		return gridOf(func(x float64) float64 {
			each := math.Ceil(x / float64(ranks))
			return math.Min(few.at(each), many.at(each)) * 1e-6
		}), nil
	}
	gather, err := p.t.curve(key{op: opGather, i: ranks})
	if err != nil {
		return nil, err
	}
	scatter, err := p.t.curve(key{op: opScatter, i: ranks})
	if err != nil {
		return nil, err
	}
	bytes := 2 * float64(p.v.Proto.Hidden)
	return gridOf(func(x float64) float64 { return (gather.at(x*bytes) + scatter.at(x*bytes)) * 1e-6 }), nil
}

// Even is Seconds for groups with equal load and this number of tokens in total (the last groups may have a little
// less).
func (s *Step) Even(l Load, tokens int) float64 {
	return s.own(&l) + s.layers*(s.moe.at(tokens)+s.all.at(tokens))
}

// own returns the seconds of a group's work without any other group.
func (s *Step) own(l *Load) float64 {
	seconds := s.dense.at(l.Decode+l.Prefill)*s.layers + l.Chunks
	if l.Decode > 0 {
		seconds += s.decode(l.Decode, l.Context/l.Decode) * s.layers
	}
	return seconds
}
