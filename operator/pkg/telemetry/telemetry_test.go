package telemetry

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

func TestBuckets(t *testing.T) {
	for b := int32(firstBucket); b <= lastBucket; b++ {
		require.Equal(t, b, Bucket(Bound(b)), "a bound is in its own bucket")
		if b < lastBucket {
			require.Equal(t, b+1, Bucket(math.Nextafter(Bound(b), math.Inf(1))))
		}
	}
	for _, none := range []float64{0, -1, math.NaN(), 1e-9} {
		require.EqualValues(t, firstBucket, Bucket(none))
	}
	require.EqualValues(t, lastBucket, Bucket(math.Inf(1)))
	sure, maybe := within(firstBucket, 1e-9)
	require.False(t, sure)
	require.True(t, maybe, "whatever is shorter than all bounds is in the first one")
	sure, maybe = within(lastBucket, 1e9)
	require.False(t, sure, "whatever is longer than all bounds is in the last one")
	require.True(t, maybe)
}

// answer of a client.
type answer struct {
	first, rest float64
	tokens      int
}

func drawn(r *rand.Rand) answer {
	return answer{math.Exp(r.NormFloat64()*2 - 1), math.Exp(r.NormFloat64()*2 + 1), 1 + r.IntN(100)}
}

// What is within an SLO lies where Attainment says, and an SLO that is a bound leaves nothing open.
func TestAttainmentHoldsTheTruth(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		all := make([]answer, 1+r.IntN(300))
		l := Latencies{}
		for i := range all {
			all[i] = drawn(r)
			l.Note(all[i].first, all[i].rest, all[i].tokens)
		}
		slo := SLO{TTFT: math.Exp(r.NormFloat64()), TPOT: math.Exp(r.NormFloat64() - 3)}
		switch r.IntN(4) {
		case 0:
			slo.TTFT = 0
		case 1:
			slo.TPOT = 0
		case 2:
			slo = SLO{TTFT: Bound(int32(r.IntN(40) - 20)), TPOT: Bound(int32(r.IntN(40) - 40))}
		}
		require.NoError(t, slo.Check())
		truth, tokens := uint64(0), uint64(0)
		for _, a := range all {
			if (slo.TTFT == 0 || a.first <= slo.TTFT) && (slo.TPOT == 0 || a.tokens == 1 || a.rest/float64(a.tokens-1) <= slo.TPOT) {
				truth++
				tokens += uint64(a.tokens)
			}
		}
		got := l.Attainment(slo)
		require.EqualValues(t, len(all), got.Answers)
		require.LessOrEqual(t, got.Within, truth)
		require.GreaterOrEqual(t, got.Within+got.Unsure, truth)
		require.LessOrEqual(t, got.Tokens, tokens)
		if slo.TTFT > 0 && Bound(Bucket(slo.TTFT)) == slo.TTFT && slo.TPOT > 0 && Bound(Bucket(slo.TPOT)) == slo.TPOT {
			require.Zero(t, got.Unsure)
			require.Equal(t, truth, got.Within)
			require.Equal(t, tokens, got.Tokens)
		}
		share, ok := got.Share()
		require.True(t, ok)
		require.True(t, share >= 0 && share <= 1)
	}
	_, ok := Attainment{}.Share()
	require.False(t, ok)
	share, ok := Attainment{Answers: 10, Within: 4, Unsure: 3}.Share()
	require.True(t, ok)
	require.InDelta(t, .55, share, 1e-12)
}

func TestQuantiles(t *testing.T) {
	l := Latencies{}
	for i := range 100 {
		l.Note(float64(i+1)/100, 3, 2)
	}
	for _, q := range []float64{.01, .5, .9, .99, 1} {
		got, ok := l.FirstToken(q)
		require.True(t, ok)
		require.GreaterOrEqual(t, got, q)
		require.LessOrEqual(t, got, q*1.1)
	}
	got, ok := l.BetweenTokens(.5)
	require.True(t, ok)
	require.InDelta(t, Bound(Bucket(3)), got, 0)
	_, ok = Latencies{{One: true}: {1, 1}}.BetweenTokens(.5)
	require.False(t, ok)
	least, ok := l.FirstToken(0)
	require.True(t, ok)
	require.InDelta(t, Bound(Bucket(.01)), least, 0)
	_, ok = Latencies{}.FirstToken(.5)
	require.False(t, ok)
	for _, q := range []float64{math.NaN(), -.1, 1.1} {
		_, ok = l.FirstToken(q)
		require.False(t, ok, q)
	}
}

func TestBadSLOs(t *testing.T) {
	for _, s := range []SLO{{TTFT: 1}, {TPOT: 1, Share: 1}, {TTFT: 1, TPOT: 1, Share: .9}} {
		require.NoError(t, s.Check())
	}
	for _, s := range []SLO{{}, {TTFT: -1}, {TTFT: math.NaN(), TPOT: 1}, {TPOT: math.Inf(1)}, {TTFT: 1, Share: 2}, {TTFT: 1, Share: math.NaN()}, {TTFT: 1, Share: -.1}} {
		require.Error(t, s.Check(), "%+v", s)
	}
}

// To merge is to add: in whatever parts and order.
func TestMergingIsAdding(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	whole := Latencies{}
	parts := []Latencies{{}, {}, {}}
	for range 2000 {
		a := drawn(r)
		whole.Note(a.first, a.rest, a.tokens)
		parts[r.IntN(3)].Note(a.first, a.rest, a.tokens)
	}
	whole.Note(1e9, 1e9, 2)
	parts[0].Note(1e9, 1e9, 2)
	require.True(t, slices.IsSortedFunc(whole.Proto(), func(a, b *tangramv1.LatencyCell) int {
		return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(a.Between, b.Between))
	}), "the same wire for the same answers")
	for _, order := range [][]int{{0, 1, 2}, {2, 0, 1}, {1, 2, 0}} {
		merged := Latencies{}
		for _, i := range order {
			wire, err := read(parts[i].Proto())
			require.NoError(t, err)
			merged.Merge(wire)
		}
		require.Equal(t, whole, merged)
	}
}

// play is a world that counts for itself what its gateways and ranks count.
type play struct {
	r        *rand.Rand
	now      float64
	epoch    uint64
	ranks    []*tangramv1.RankReport
	gateways []*tangramv1.TelemetryReport
	answers  []Latencies
	members  int
}

func (p *play) join() {
	p.members++
	p.ranks = append(p.ranks, &tangramv1.RankReport{Member: fmt.Sprint("m", p.members),
		Load: &tangramv1.Load{KvPages: 100, KvFreePages: 40, Telemetry: &tangramv1.RankTelemetry{Epoch: p.epoch}}})
}

func (p *play) gateway() {
	p.gateways = append(p.gateways, &tangramv1.TelemetryReport{World: "w", Gateway: fmt.Sprint("g", len(p.gateways)), Incarnation: p.r.Uint64(), At: p.r.Float64() * 1e6})
	p.answers = append(p.answers, Latencies{})
}

// flip begins an epoch, in which steps count from 0.
func (p *play) flip() {
	p.epoch++
	for _, r := range p.ranks {
		r.Load.Telemetry.Epoch, r.Load.Telemetry.Cells = p.epoch, nil
	}
}

func boolean(is bool) uint64 {
	if is {
		return 1
	}
	return 0
}

func (p *play) pass(seconds float64) {
	p.now += seconds
	for _, g := range p.gateways {
		g.At += seconds
	}
}

// work for so many seconds; what was done.
func (p *play) work(seconds float64) (c Counters, answers uint64, steps uint64) {
	p.pass(seconds)
	for range p.r.IntN(5) {
		steps++
		octave, prefill := uint32(p.r.IntN(4)), p.r.IntN(2) == 0
		c.Overruns += boolean(octave == 1)
		c.Cut += boolean(octave == 2)
		for _, r := range p.ranks {
			t := r.Load.Telemetry
			t.Steps++
			t.PacedSteps++
			t.PaceOverruns += boolean(octave == 1)
			t.PaceCut += boolean(octave == 2)
			t.StepSeconds += .25
			var cell *tangramv1.StepCell
			for _, have := range t.Cells {
				if have.Octave == octave && have.Prefill == prefill {
					cell = have
				}
			}
			if cell == nil {
				cell = &tangramv1.StepCell{Octave: octave, Prefill: prefill}
				t.Cells = append(t.Cells, cell)
			}
			cell.Steps++
			cell.Seconds += .25
			cell.Decode++
			cell.Context += 10
			if prefill {
				cell.PromptTokens += 3
				cell.Before += 5
			}
		}
	}
	for _, r := range p.ranks {
		n := uint64(p.r.IntN(10))
		r.Load.Telemetry.Arrived += n
		r.Load.Telemetry.OutputTokens += 2 * n
		c.Arrived += n
		c.OutputTokens += 2 * n
	}
	for i, g := range p.gateways {
		n := uint64(p.r.IntN(5))
		g.Arrived += n + 1
		g.Answered += n
		g.OutputTokens += 7 * n
		for range n {
			p.answers[i].Note(p.r.Float64(), p.r.Float64(), 7)
		}
		c.Sent += n + 1
		c.Answered += n
		c.Written += 7 * n
		answers += n
	}
	c.Steps, c.PacedSteps, c.StepSeconds = steps, steps, float64(steps)*.25
	return c, answers, steps
}

func (p *play) reads() []Read {
	var out []Read
	for i, g := range p.gateways {
		said := proto.CloneOf(g)
		said.Epoch, said.Latencies = p.epoch, p.answers[i].Proto()
		for n, r := range p.ranks {
			heard := proto.CloneOf(r)
			heard.Rank, heard.Age = uint32(n), p.r.Float64()/4
			said.Ranks = append(said.Ranks, heard)
		}
		out = append(out, Read{Gateway: g.Gateway, Report: said})
	}
	p.r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

func newPlay(seed uint64) *play {
	p := &play{r: rand.New(rand.NewPCG(seed, 9)), epoch: 1, now: 1000}
	for range 1 + p.r.IntN(4) {
		p.join()
	}
	for range 1 + p.r.IntN(3) {
		p.gateway()
	}
	return p
}

// What is counted is what was done, through flips, readings that fail, ranks and gateways that come, and in whatever order gateways answer.
func TestCountsWhatWasDone(t *testing.T) {
	for seed := range uint64(200) {
		p := newPlay(seed)
		m := NewMerger("w")
		var done Counters
		answers, felt, steps, told := uint64(0), uint64(0), uint64(0), uint64(0)
		take := func() {
			p.pass(.001)
			s, err := m.Take(p.now, p.reads())
			require.NoError(t, err)
			require.Empty(t, s.Problems, "seed %d", seed)
			require.True(t, s.Whole)
			require.Equal(t, done, s.Total, "seed %d", seed)
			require.InDelta(t, .25*float64(steps), s.Total.StepSeconds, 1e-9)
			for _, n := range s.Answers {
				felt += n.Requests
			}
			require.Equal(t, answers, felt, "seed %d", seed)
			for k, n := range s.Steps {
				told += n.Steps
				prompts := n.Steps * boolean(k.Prefill)
				require.Equal(t, Steps{n.Steps, .25 * float64(n.Steps), n.Steps, 10 * n.Steps, 3 * prompts, 5 * prompts}, n)
				require.Equal(t, p.epoch, k.Epoch)
			}
			require.LessOrEqual(t, told, steps, "no step counts twice; seed %d", seed)
			require.Equal(t, len(p.ranks), s.Gauges.Ranks)
			require.EqualValues(t, 100*len(p.ranks), s.Gauges.KVPages)
		}
		take()
		for range 30 {
			switch p.r.IntN(8) {
			case 0:
				p.flip()
			case 1: // whoever comes counts from when it is first heard of
				p.join()
				p.gateway()
				take()
			}
			c, a, n := p.work(.2 + p.r.Float64())
			done = done.plus(c)
			answers, steps = answers+a, steps+n
			if p.r.IntN(6) > 0 { // else nobody reads
				take()
			}
		}
		require.Positive(t, told)
	}
}

// Somebody who starts anew, or counts backwards, costs what was counted meanwhile, and no more: nothing ever shrinks.
func TestNothingShrinks(t *testing.T) {
	for seed := range uint64(200) {
		p := newPlay(seed)
		m := NewMerger("w")
		last, done := Counters{}, Counters{}
		for range 40 {
			c, _, _ := p.work(.5)
			done = done.plus(c)
			switch p.r.IntN(6) {
			case 0: // a gateway starts anew
				i := p.r.IntN(len(p.gateways))
				p.gateways[i] = &tangramv1.TelemetryReport{World: "w", Gateway: p.gateways[i].Gateway, Incarnation: p.r.Uint64()}
				p.answers[i] = Latencies{}
			case 1: // a rank counts backwards
				p.ranks[p.r.IntN(len(p.ranks))].Load.Telemetry = &tangramv1.RankTelemetry{Epoch: p.epoch}
			case 2: // a rank goes
				if len(p.ranks) > 1 {
					p.ranks = p.ranks[1:]
				}
			case 3:
				p.join()
			}
			s, err := m.Take(p.now, p.reads())
			if err != nil {
				continue
			}
			_, grew := s.Total.since(last)
			require.True(t, grew, "seed %d: %+v after %+v", seed, s.Total, last)
			_, more := done.since(s.Total)
			require.True(t, more, "seed %d: %+v counted, %+v done", seed, s.Total, done)
			last = s.Total
		}
		require.Positive(t, last.Arrived)
	}
}

// one gateway and one rank, which tell something that can be right.
func fine(at float64) *tangramv1.TelemetryReport {
	return &tangramv1.TelemetryReport{World: "w", Gateway: "g", Incarnation: 1, At: at, Epoch: 4, Arrived: 9, Answered: 5, Failed: 1, Left: 1, OutputTokens: 50,
		Latencies: []*tangramv1.LatencyCell{{First: 3, Between: -20, Requests: 5, Tokens: 50}},
		Ranks: []*tangramv1.RankReport{{Member: "m", Age: .1, Load: &tangramv1.Load{Running: 3, Waiting: 1, KvPages: 10, KvFreePages: 4, Telemetry: &tangramv1.RankTelemetry{
			Decoding: 2, QueuedTokens: 11, ContextTokens: 12, GeneratedTokens: 13, ReservedTokens: 14, WaitingTokens: 15, QueueAge: 1.5, Arrived: 9, Steps: 7, StepSeconds: 2, PacedSteps: 7, PaceOverruns: 1, Epoch: 4,
			Cells: []*tangramv1.StepCell{{Octave: 1, Steps: 7, Seconds: 2, Decode: 14, Context: 90}}}}}}}
}

func TestBadReportsSayWhatIsWrong(t *testing.T) {
	load := func(r *tangramv1.TelemetryReport) *tangramv1.Load { return r.Ranks[0].Load }
	nan, inf := math.NaN(), math.Inf(1)
	for want, spoil := range map[string]func(*tangramv1.TelemetryReport){
		`world "v"`:               func(r *tangramv1.TelemetryReport) { r.World = "v" },
		"names no gateway":        func(r *tangramv1.TelemetryReport) { r.Gateway = "" },
		"times NaN":               func(r *tangramv1.TelemetryReport) { r.At = nan },
		"times 1, +Inf":           func(r *tangramv1.TelemetryReport) { r.HomelessAge = inf },
		"nobody is without":       func(r *tangramv1.TelemetryReport) { r.HomelessAge = 1 },
		"9 requests came, and 22": func(r *tangramv1.TelemetryReport) { r.Answered = 20 },
		"there twice":             func(r *tangramv1.TelemetryReport) { r.Ranks = append(r.Ranks, r.Ranks[0]) },
		"an age of -1":            func(r *tangramv1.TelemetryReport) { r.Ranks[0].Age = -1 },
		"m: 11 of 10 pages":       func(r *tangramv1.TelemetryReport) { load(r).KvFreePages = 11 },
		"m: 4 of 3 running":       func(r *tangramv1.TelemetryReport) { load(r).Telemetry.Decoding = 4 },
		"m: times NaN, 2":         func(r *tangramv1.TelemetryReport) { load(r).Telemetry.QueueAge = nan },
		"m: times 1.5, -2":        func(r *tangramv1.TelemetryReport) { load(r).Telemetry.StepSeconds = -2 },
		"of 7 steps 8 were paced": func(r *tangramv1.TelemetryReport) { load(r).Telemetry.PacedSteps = 8 },
		"m: steps":                func(r *tangramv1.TelemetryReport) { load(r).Telemetry.Cells[0].Seconds = nan },
		`member "" is none`:       func(r *tangramv1.TelemetryReport) { r.Ranks[0].Member = "" },
		"7 too long and 1 cut":    func(r *tangramv1.TelemetryReport) { load(r).Telemetry.PaceOverruns, load(r).Telemetry.PaceCut = 7, 1 },
		"65 kinds of steps": func(r *tangramv1.TelemetryReport) {
			for len(load(r).Telemetry.Cells) < 65 {
				load(r).Telemetry.Cells = append(load(r).Telemetry.Cells, load(r).Telemetry.Cells[0])
			}
		},
		"decode:91":                      func(r *tangramv1.TelemetryReport) { load(r).Telemetry.Cells[0].Decode = 91 },
		"between:-20 one:true":           func(r *tangramv1.TelemetryReport) { r.Latencies[0].One, r.Latencies[0].Tokens = true, 5 },
		"9 requests came, and 26":        func(r *tangramv1.TelemetryReport) { r.Failed = 20 },
		"9 requests came, and 16":        func(r *tangramv1.TelemetryReport) { r.Left = 10 },
		"seconds:2 decode:14 context:90": func(r *tangramv1.TelemetryReport) { load(r).Telemetry.Cells[0].Steps = 0 },
		"octave:32":                      func(r *tangramv1.TelemetryReport) { load(r).Telemetry.Cells[0].Octave = 32 },
		"first:-81":                      func(r *tangramv1.TelemetryReport) { r.Latencies[0].First = -81 },
		"between:97":                     func(r *tangramv1.TelemetryReport) { r.Latencies[0].Between = 97 },
		"one:true":                       func(r *tangramv1.TelemetryReport) { r.Latencies[0].One, r.Latencies[0].Between = true, 0 },
		"are none":                       func(r *tangramv1.TelemetryReport) { load(r).Telemetry.Cells[0].Prefill = true },
		"latencies: cell":                func(r *tangramv1.TelemetryReport) { r.Latencies[0].First = 1000 },
		"is there twice":                 func(r *tangramv1.TelemetryReport) { r.Latencies = append(r.Latencies, r.Latencies[0]) },
		"cell first:3 ":                  func(r *tangramv1.TelemetryReport) { r.Latencies[0].Tokens = 1 },
	} {
		r := fine(1)
		spoil(r)
		m := NewMerger("w")
		_, err := m.Take(1, []Read{{Gateway: "10.0.0.1", Report: r}})
		require.Error(t, err, want)
		text := err.Error()
		text = strings.Join(strings.Fields(text), " ") // the wire's own text has one or two blanks
		require.Contains(t, text, strings.TrimSpace(want))
		require.Contains(t, text, "10.0.0.1", "who said so")
		s, err := m.Take(2, []Read{{Gateway: "10.0.0.1", Report: fine(2)}})
		require.NoError(t, err, "what is right afterwards is taken")
		require.Zero(t, s.Total, "of what could not be right nothing is counted")
	}
	m := NewMerger("w")
	for _, at := range []float64{math.NaN(), math.Inf(1), -1} {
		_, err := m.Take(at, nil)
		require.ErrorContains(t, err, "the clock says")
	}
	_, err := m.Take(1, nil)
	require.ErrorContains(t, err, "no gateway was asked")
	_, err = m.Take(1, nil)
	require.ErrorContains(t, err, "the clock went from 1 to 1")
	reads := []Read{{Gateway: "y", Report: fine(2)}, {Gateway: "x", Report: fine(1)}}
	s, err := m.Take(1.5, reads)
	require.NoError(t, err)
	require.InDelta(t, .5, s.Seconds, 1e-12)
	require.Equal(t, []Problem{{"y", "gateway g was heard already"}}, s.Problems, "in the order of their names")
	require.Equal(t, "y", reads[0].Gateway, "the caller's are as they were")
	less := fine(2)
	less.Latencies[0].Requests, less.Latencies[0].Tokens = 4, 60
	_, err = m.Take(1.6, []Read{{Gateway: "x", Report: less}})
	require.ErrorContains(t, err, "a counter shrank")
	_, err = m.Take(2, []Read{{Gateway: "x", Err: errors.New("connection refused")}, {Gateway: "y"}})
	require.ErrorContains(t, err, "connection refused")
	require.ErrorContains(t, err, "there is none")
}

func TestClocksThatJump(t *testing.T) {
	m := NewMerger("w")
	take := func(reader, gateway float64, more uint64) (*Sample, error) {
		r := fine(gateway)
		r.Arrived += more
		return m.Take(reader, []Read{{Gateway: "g", Report: r}})
	}
	_, err := take(10, 100, 0)
	require.NoError(t, err)
	s, err := take(11, 101, 3)
	require.NoError(t, err)
	require.EqualValues(t, 3, s.Total.Sent)
	_, err = take(12, 101, 4)
	require.ErrorContains(t, err, "its clock went from 101 to 101")
	_, err = take(13, 202, 5)
	require.ErrorContains(t, err, "its clock jumped by 100.0 s")
	_, err = take(5, 203, 6)
	require.ErrorContains(t, err, "the clock went from 13 to 5")
	s, err = take(6, 204, 7)
	require.ErrorContains(t, err, "jumped", "what it told last was at 13 of the reader's clock")
	require.Nil(t, s)
	s, err = take(7, 205, 9)
	require.NoError(t, err)
	require.EqualValues(t, 5, s.Total.Sent, "3, and the 2 since the last one that was right")
}

func TestSilenceIsTold(t *testing.T) {
	m := NewMerger("w")
	r := fine(1)
	r.Ranks = append(r.Ranks, &tangramv1.RankReport{Member: "quiet", Rank: 1, Load: &tangramv1.Load{Running: 9, KvFreePages: 1}}, &tangramv1.RankReport{Member: "late", Rank: 2, Age: silentAfter + 1, Load: r.Ranks[0].Load})
	s, err := m.Take(1, []Read{{Gateway: "g", Report: r}})
	require.NoError(t, err)
	require.False(t, s.Whole)
	require.Equal(t, Gauges{Running: 3, Decoding: 2, Waiting: 1, QueuedTokens: 11, ContextTokens: 12, GeneratedTokens: 13, ReservedTokens: 14, WaitingTokens: 15,
		QueueAge: 1.5, KVPages: 10, KVFree: 4, Ranks: 3, Silent: 2}, s.Gauges)

	// Another gateway hears them, and knows of a newer epoch, of which one is no member. What it did not hear yet, the first one did.
	other := fine(50)
	other.Gateway, other.Epoch, other.Homeless, other.HomelessAge = "h", 5, 2, 9
	other.Ranks = append(other.Ranks, &tangramv1.RankReport{Member: "late", Rank: 1, Load: proto.CloneOf(other.Ranks[0].Load)})
	r = fine(2)
	r.Ranks = append(r.Ranks, &tangramv1.RankReport{Member: "gone", Rank: 1, Load: r.Ranks[0].Load})
	third := fine(70)
	third.Gateway, third.Epoch = "k", 5
	third.Ranks[0] = &tangramv1.RankReport{Member: "late", Rank: 1}
	fourth := proto.CloneOf(third)
	fourth.Gateway = "a"
	s, err = m.Take(2, []Read{{Gateway: "g", Report: r}, {Gateway: "h", Report: other}, {Gateway: "k", Report: third}, {Gateway: "a", Report: fourth}, {Gateway: "i", Err: errors.New("down")}})
	require.NoError(t, err)
	require.False(t, s.Whole, "one gateway did not answer")
	require.Equal(t, []Problem{{"i", "down"}}, s.Problems)
	require.EqualValues(t, 5, s.Epoch)
	require.Equal(t, 2, s.Gauges.Ranks)
	require.Equal(t, 6, s.Gauges.Running)
	require.Equal(t, 2, s.Gauges.Homeless)
	require.InDelta(t, 9, s.Gauges.QueueAge, 0)
	require.Zero(t, s.Gauges.Silent)
}

// Ranks are silent in turn: every step counts once.
func TestStepsCountOnce(t *testing.T) {
	for seed := range uint64(100) {
		p := newPlay(seed)
		for len(p.ranks) < 3 {
			p.join()
		}
		m := NewMerger("w")
		steps, told := uint64(0), uint64(0)
		const nobody, all = 99, -1
		read := func(silent int) {
			reads := p.reads()
			for _, r := range reads {
				for n, rank := range r.Report.Ranks {
					if n == silent || silent == all {
						rank.Age = silentAfter + 1
					}
				}
			}
			s, err := m.Take(p.now, reads)
			require.NoError(t, err)
			for _, n := range s.Steps {
				told += n.Steps
			}
			require.LessOrEqual(t, told, steps, "seed %d", seed)
		}
		read(nobody)
		for range 40 {
			_, _, n := p.work(.5)
			steps += n
			read(p.r.IntN(len(p.ranks)+2) - 1)
		}
		p.pass(.5)
		read(nobody)
		require.Equal(t, steps, told, "seed %d", seed)
	}
}

// What is told of ranks is told in their order.
func TestProblemsHaveAnOrder(t *testing.T) {
	for range 20 {
		m := NewMerger("w")
		p := newPlay(1)
		for len(p.ranks) < 6 {
			p.join()
		}
		p.work(1)
		for _, r := range p.ranks {
			r.Load.Telemetry.Arrived += 5
		}
		_, err := m.Take(p.now, p.reads())
		require.NoError(t, err)
		for _, r := range p.ranks {
			r.Load.Telemetry.Arrived = 0
		}
		p.pass(1)
		s, err := m.Take(p.now, p.reads())
		require.NoError(t, err)
		require.Len(t, s.Problems, 6)
		for i, problem := range s.Problems {
			require.Equal(t, p.ranks[i].Member, problem.Source)
		}
	}
}

// What is counted anew, each for its reason.
func TestCountedAnew(t *testing.T) {
	for _, c := range []struct {
		name, problem string
		change        func(*tangramv1.TelemetryReport)
	}{
		{"a gateway that started anew, and has counted more by now", "", func(r *tangramv1.TelemetryReport) { r.Incarnation, r.Arrived = 2, 100 }},
		{"requests that shrank", "a counter shrank", func(r *tangramv1.TelemetryReport) { r.Arrived = 8 }},
		{"seconds that shrank", "a counter shrank", func(r *tangramv1.TelemetryReport) { r.Ranks[0].Load.Telemetry.StepSeconds = 1 }},
		{"steps that shrank", "its steps shrank", func(r *tangramv1.TelemetryReport) { r.Ranks[0].Load.Telemetry.Cells[0].Steps = 6 }},
		{"tokens that shrank", "a counter shrank", func(r *tangramv1.TelemetryReport) { r.Latencies[0].Tokens = 49 }},
		{"seconds of steps that shrank", "its steps shrank", func(r *tangramv1.TelemetryReport) { r.Ranks[0].Load.Telemetry.Cells[0].Seconds = 1 }},
		{"decodes that shrank", "its steps shrank", func(r *tangramv1.TelemetryReport) { r.Ranks[0].Load.Telemetry.Cells[0].Decode = 13 }},
		{"context that shrank", "its steps shrank", func(r *tangramv1.TelemetryReport) { r.Ranks[0].Load.Telemetry.Cells[0].Context = 89 }},
		{"steps that are gone", "its steps shrank", func(r *tangramv1.TelemetryReport) { r.Ranks[0].Load.Telemetry.Cells = nil }},
		{"a world that began anew", "", func(r *tangramv1.TelemetryReport) {
			r.Epoch, r.Ranks[0].Load.Telemetry.Epoch, r.Ranks[0].Load.Telemetry.Cells[0].Steps = 1, 1, 100
		}},
	} {
		m := NewMerger("w")
		_, err := m.Take(1, []Read{{Gateway: "g", Report: fine(1)}})
		require.NoError(t, err)
		r := fine(2)
		c.change(r)
		s, err := m.Take(2, []Read{{Gateway: "g", Report: r}})
		if c.problem != "" && err != nil {
			require.ErrorContains(t, err, c.problem, c.name)
			continue
		}
		require.NoError(t, err, c.name)
		require.Zero(t, s.Grown, c.name)
		require.Empty(t, s.Steps, c.name)
		if c.problem != "" {
			require.ErrorContains(t, errors.New(fmt.Sprint(s.Problems)), c.problem, c.name)
			continue
		}
		require.Empty(t, s.Problems, c.name)
	}
}

// What is at the edge of what can be right.
func TestFineReports(t *testing.T) {
	r := fine(1)
	l := r.Ranks[0].Load
	l.KvFreePages, l.Telemetry.PaceOverruns, l.Telemetry.PaceCut, r.Left = l.KvPages, 3, 4, 3
	l.Telemetry.Cells = nil
	for octave := range uint32(mostOctaves) {
		l.Telemetry.Cells = append(l.Telemetry.Cells, &tangramv1.StepCell{Octave: octave, Steps: 1, Decode: 1, Context: 1},
			&tangramv1.StepCell{Octave: octave, Prefill: true, Steps: 1, PromptTokens: 1})
	}
	r.Ranks = append(r.Ranks, &tangramv1.RankReport{Member: "n"})
	_, err := NewMerger("w").Take(0, []Read{{Gateway: "g", Report: r}})
	require.NoError(t, err)
}

// What one gateway heard later than another is old, not a counter that shrank.
func TestWhoHearsLateTakesNothingBack(t *testing.T) {
	m := NewMerger("w")
	at := func(reader, age float64, gateway string, arrived uint64) *Sample {
		r := fine(reader)
		r.Gateway = gateway
		r.Ranks[0].Age, r.Ranks[0].Load.Telemetry.Arrived = age, arrived
		s, err := m.Take(reader, []Read{{Gateway: gateway, Report: r}})
		require.NoError(t, err)
		require.Empty(t, s.Problems)
		return s
	}
	at(10, .1, "g", 9)
	require.EqualValues(t, 5, at(11, .1, "g", 14).Total.Arrived)
	require.EqualValues(t, 5, at(12, 2, "h", 11).Total.Arrived, "as it was at 10")
	require.EqualValues(t, 7, at(13, .1, "h", 16).Total.Arrived)
}

func TestWindows(t *testing.T) {
	h, err := NewHistory(10)
	require.NoError(t, err)
	for _, keep := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		_, err := NewHistory(keep)
		require.Error(t, err)
	}
	_, err = h.Window(1, 10, 5)
	require.ErrorContains(t, err, "nothing was read yet")
	p := newPlay(5)
	m := NewMerger("w")
	type moment struct {
		at, seconds float64
		c           Counters
		answers     Latencies
		steps       map[StepKey]Steps
	}
	var all []moment
	for i := range 40 {
		p.work(.5)
		s, err := m.Take(p.now, p.reads())
		require.NoError(t, err)
		require.NoError(t, h.Add(s))
		require.ErrorContains(t, h.Add(s), "after one of")
		all = append(all, moment{s.At, s.Seconds, s.Grown, s.Answers, s.Steps})
		w, err := h.Window(p.now, 4, 5)
		if i == 0 {
			require.ErrorContains(t, err, "nothing to be compared with")
			continue
		}
		require.NoError(t, err)
		var want Counters
		seconds, answers := 0., Latencies{}
		sums := map[StepKey][6]float64{}
		for _, one := range all[1:] {
			if one.at > p.now-4 {
				want = want.plus(one.c)
				seconds += one.seconds
				answers.Merge(one.answers)
				for k, n := range one.steps {
					was := sums[k]
					for i, v := range []float64{float64(n.Steps), n.Seconds, float64(n.Decode), float64(n.Context), float64(n.PromptTokens), float64(n.Before)} {
						was[i] += v
					}
					sums[k] = was
				}
			}
		}
		require.InDelta(t, seconds, w.Seconds, 1e-9)
		require.Equal(t, want, w.Grown)
		require.Equal(t, answers, w.Answers)
		require.Len(t, w.Steps, len(sums))
		for k, n := range w.Steps {
			require.Equal(t, sums[k], [6]float64{float64(n.Steps), n.Seconds, float64(n.Decode), float64(n.Context), float64(n.PromptTokens), float64(n.Before)})
		}
		require.InDelta(t, float64(want.Written)/seconds, w.TokensPerSecond(), 1e-9)
		slo := SLO{TTFT: Bound(-8), TPOT: Bound(-24)}
		good, tokens := w.Goodput(slo)
		require.InDelta(t, float64(answers.Attainment(slo).Within)/seconds, good, 1e-9)
		require.InDelta(t, 7*good, tokens, 1e-9)
	}
	require.Len(t, h.samples, 20, "what is older is forgotten")
	_, err = h.Window(p.now+6, 4, 5)
	require.ErrorContains(t, err, "nothing was read for 6.0 s")
	_, err = h.Window(p.now-1, 4, 5)
	require.ErrorContains(t, err, "the clock went")
}

func TestMeanSteps(t *testing.T) {
	seconds, decode, context, prefill, before := Steps{Steps: 4, Seconds: 2, Decode: 10, Context: 1000, PromptTokens: 20, Before: 100}.Mean()
	require.InDelta(t, .5, seconds, 0)
	require.Equal(t, []int{3, 100, 5, 5}, []int{decode, context, prefill, before})
	seconds, decode, _, _, _ = Steps{}.Mean()
	require.Zero(t, seconds)
	require.Zero(t, decode)
}

// Members and gateways that are not heard of any more are forgotten; 1,000 readings of a world that changes all the time keep what is there.
func TestWhatIsGoneIsForgotten(t *testing.T) {
	p := newPlay(3)
	m := NewMerger("w")
	for range 1000 {
		p.work(10)
		p.join()
		p.ranks = p.ranks[max(0, len(p.ranks)-3):]
		p.gateways[0] = &tangramv1.TelemetryReport{World: "w", Gateway: fmt.Sprint("new", p.now), At: p.now}
		p.answers[0] = Latencies{}
		_, err := m.Take(p.now, p.reads())
		require.NoError(t, err)
		require.LessOrEqual(t, len(m.members), 3+forgetAfter/10+1)
		require.LessOrEqual(t, len(m.gateways), 3+forgetAfter/10+1)
	}
}

func BenchmarkTake(b *testing.B) {
	p := newPlay(1)
	for len(p.ranks) < 256 {
		p.join()
	}
	m := NewMerger("w")
	for b.Loop() {
		b.StopTimer()
		p.work(1)
		reads := p.reads()
		b.StartTimer()
		if _, err := m.Take(p.now, reads); err != nil {
			b.Fatal(err)
		}
	}
}
