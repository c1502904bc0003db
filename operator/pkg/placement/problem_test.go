package placement

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestInvalidPlacementsAreRejected(t *testing.T) {
	for want, p := range map[string]*Placement{
		"needs Start of ranks+1 numbers from 0, has 1":       {Start: []int32{0}},
		"needs Start of ranks+1 numbers from 0, has 2":       {Start: []int32{1, 2}},
		"rank 1 of the placement ends at slot 1":             {Start: []int32{0, 2, 1}},
		"has 1 entries, not a multiple of its 0 slots":       {Start: []int32{0, 0}, Slot: []int32{0}},
		"has 3 entries, not a multiple of its 2 slots":       {Experts: 1, Start: []int32{0, 2}, Slot: []int32{0, 0, 0}},
		"layer 1, slot 0 holds expert 2; experts are 0 to 1": {Experts: 2, Start: []int32{0, 2}, Slot: []int32{0, 1, 2, 1}},
		"layer 0, slot 1 holds expert -2":                    {Experts: 2, Start: []int32{0, 2}, Slot: []int32{0, -2}},
	} {
		require.ErrorContains(t, p.Valid(), want)
		require.ErrorIs(t, p.Valid(), ErrInput)
	}
	for _, p := range []*Placement{
		{Start: []int32{0, 0}},
		{Start: []int32{0, 0, 1}, Experts: 1, Slot: []int32{Empty, 0}},
	} {
		require.NoError(t, p.Valid())
	}
	require.Zero(t, (&Placement{Start: []int32{0, 0}}).Layers())
	require.Equal(t, 2, (&Placement{Start: []int32{0, 1}, Slot: []int32{0, 0}}).Layers())
}

// Values just within the limits of a problem are accepted, values just beyond are rejected.
func TestProblemLimits(t *testing.T) {
	large := math.Sqrt(math.MaxFloat64)
	good := func() *Problem {
		return &Problem{Layers: []Layer{{Load: []float64{1, 2, 3}}}, Ranks: evenRanks(2, 2)}
	}
	for what, c := range map[string]struct {
		change  func(*Problem)
		refused string
	}{
		"as it is":             {func(*Problem) {}, ""},
		"a slot for each":      {func(p *Problem) { p.Ranks[1].Slots = 1 }, ""},
		"a slot too few":       {func(p *Problem) { p.Ranks[1].Slots = 0 }, "3 experts need as many slots, the 2 ranks have 2"},
		"slots beyond experts": {func(p *Problem) { p.Ranks[0].Slots, p.Ranks[1].Slots = 0, 2 }, "the 2 ranks have 2"},
		"most slots":           {func(p *Problem) { p.Ranks[0].Slots = math.MaxInt32 }, ""},
		"too many slots":       {func(p *Problem) { p.Ranks[0].Slots = math.MaxInt32 + 1 }, "rank 0 has 2147483648 slots"},
		"backwards":            {func(p *Problem) { p.Ranks[0].Speed = -0.5 }, "speed -0.5"},
		"infinite speed":       {func(p *Problem) { p.Ranks[1].Speed = math.Inf(1) }, "rank 1 has speed +Inf"},
		"no load":              {func(p *Problem) { p.Layers[0].Load = []float64{0, 0, 0} }, ""},
		"largest load":         {func(p *Problem) { p.Layers[0].Load = []float64{large, 0, 0} }, ""},
		"too large a load":     {func(p *Problem) { p.Layers[0].Load = []float64{large, large / 1e9, 0} }, "too much for arithmetic"},
		"no ranks":             {func(p *Problem) { p.Ranks = nil }, "1 layers on 0 ranks"},
		"no experts":           {func(p *Problem) { p.Layers[0] = Layer{Load: []float64{}} }, "layer 0 has no loads"},
		"rounding by source":   {bySource(1-0.9e-6, 2, 3-2.7e-6), ""},
		"less by source":       {bySource(1-1.1e-6, 2, 3), "expert 0: load 1, but the source ranks ask for"},
		"more by source":       {bySource(1, 2, 3+3.3e-6), "expert 2: load 3, but the source ranks ask for"},
		"less than no source":  {bySource(1, -2, 3), "source rank 0, expert 1: load -2"},
		"groups of all":        {func(p *Problem) { p.Groups = []int{0, 0, 7} }, ""},
		"an old placement of other experts": {func(p *Problem) {
			p.Old = &Placement{Experts: 2, Start: []int32{0, 2}, Slot: []int32{0, 1}}
		}, "1 layers of 2 experts, the loads have 1 of 3"},
	} {
		pr := good()
		c.change(pr)
		got, err := new(Planner).Full(pr, Options{})
		if c.refused != "" {
			require.ErrorContains(t, err, c.refused, what)
			require.ErrorIs(t, err, ErrInput, what)
			continue
		}
		require.NoError(t, err, what)
		require.NoError(t, verify(pr, got), what)
	}
	require.NoError(t, badLoad(bySource(1, 2, 3)), "loads may come from the source ranks alone")
	require.NoError(t, badLoad(bySource(0.25, 0, 0)))
}

// badLoad is the error of a plan with loads by source only.
func badLoad(change func(*Problem)) error {
	pr := &Problem{Layers: []Layer{{}}, Ranks: evenRanks(2, 2)}
	change(pr)
	pr.Layers[0].Load = nil
	got, err := new(Planner).Full(pr, Options{})
	if err != nil {
		return err
	}
	return verify(pr, got)
}

// bySource gives this load to the first rank, and none to the other.
func bySource(load ...float64) func(*Problem) {
	return func(p *Problem) { p.Layers[0].BySource = [][]float64{load, {0, 0, 0}} }
}

// More slots than an index can count: possible only with very many ranks and experts.
func TestFullRejectsTooManySlots(t *testing.T) {
	const experts = 1 << 21
	pr := &Problem{Layers: []Layer{{Load: make([]float64, experts)}}, Ranks: evenRanks(1<<10, experts)}
	_, err := new(Planner).Full(pr, Options{})
	require.ErrorContains(t, err, "more than 2147483647 slots up to rank 1023")
}

// The maximum number of slots is that of an index; a plan with that many is too large for a test.
func TestMaxSlots(t *testing.T) {
	pr := &Problem{Ranks: []Rank{{Slots: math.MaxInt32}}}
	c := &checked{experts: math.MaxInt32, start: make([]int32, 2), speed: make([]float64, 1)}
	require.NoError(t, pr.checkRanks(c))
	require.Equal(t, []int32{0, math.MaxInt32}, c.start)
}

// The sum over source ranks may differ from the load by a millionth of it, or of a token.
func TestSourceSumToleratesRounding(t *testing.T) {
	pr := &Problem{Ranks: evenRanks(1, 1), Layers: []Layer{{Load: []float64{0}, BySource: [][]float64{{1e-6}}}}}
	_, err := pr.loads(0, 1)
	require.NoError(t, err)
}

func TestPriceOf(t *testing.T) {
	for _, c := range []struct{ bytes, bandwidth, layer, steps, overlap, want float64 }{
		{1e9, 1e10, 0.001, 1000, 0, 0.1},
		{1e9, 1e10, 0.001, 1000, 0.75, 0.025},
		{2e9, 1e10, 0.002, 500, 0, 0.2},
		{1e9, 1e10, 0.001, 1000, 1, 0},
		{1e9, 0, 0.001, 1000, 0, 0},
		{1e9, 1e10, 0, 1000, 0, 0},
		{1e9, 1e10, 0.001, 0, 0, 0},
		{1, 0.5, 0.5, 0.5, 0, 8},
	} {
		require.InDelta(t, c.want, PriceOf(c.bytes, c.bandwidth, c.layer, c.steps, c.overlap), 1e-12)
	}
}

func TestBalanceIsMeanOverPeak(t *testing.T) {
	require.Equal(t, 1.0, Figures{}.Balance(), "without load")
	require.Equal(t, 0.5, Figures{Mean: 0.25, Peak: 0.5}.Balance())
	r := &Result{Layers: []Figures{{Mean: 1, Peak: 2, Moved: 3}, {Mean: 3, Peak: 3, Moved: 1}, {Mean: 2, Peak: 5, Moved: 2}}}
	all, worst := r.Balance()
	require.InDelta(t, 0.6, all, 1e-12)
	require.InDelta(t, 0.4, worst, 1e-12)
	require.Equal(t, 6, r.Moved())
}
