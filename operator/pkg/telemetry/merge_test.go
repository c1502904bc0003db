package telemetry

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// play is a world with its own count of everything that its gateways and ranks count.
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

// work for a number of seconds; it returns the true counts.
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
			t.PacedStepsTruncated += boolean(octave == 2)
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

// The counts are true, through flips, failed readings, new ranks and gateways, and any order of reports.
func TestMergerCountsAllWork(t *testing.T) {
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
			case 1: // a new source counts from its first report
				p.join()
				p.gateway()
				take()
			}
			c, a, n := p.work(.2 + p.r.Float64())
			done = done.plus(c)
			answers, steps = answers+a, steps+n
			if p.r.IntN(6) > 0 { // otherwise there is no reading
				take()
			}
		}
		require.Positive(t, told)
	}
}

// A restarted source, or one whose counters go back, loses only the counts in between: no total ever shrinks.
func TestTotalsNeverShrink(t *testing.T) {
	for seed := range uint64(200) {
		p := newPlay(seed)
		m := NewMerger("w")
		last, done := Counters{}, Counters{}
		for range 40 {
			c, _, _ := p.work(.5)
			done = done.plus(c)
			switch p.r.IntN(6) {
			case 0: // a gateway restarts
				i := p.r.IntN(len(p.gateways))
				p.gateways[i] = &tangramv1.TelemetryReport{World: "w", Gateway: p.gateways[i].Gateway, Incarnation: p.r.Uint64()}
				p.answers[i] = Latencies{}
			case 1: // a rank's counters go back
				p.ranks[p.r.IntN(len(p.ranks))].Load.Telemetry = &tangramv1.RankTelemetry{Epoch: p.epoch}
			case 2: // a rank leaves
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

// Sources that are counted from zero again, each with its reason.
func TestCountersRestartFromZero(t *testing.T) {
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

// A report that one gateway received later than another is old, not a counter that shrank.
func TestLateReportDoesNotReduceTotals(t *testing.T) {
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

// Members and gateways without reports are forgotten; 1,000 readings of a constantly changing world keep only the
// present ones.
func TestAbsentSourcesAreForgotten(t *testing.T) {
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
