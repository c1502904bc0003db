package telemetry

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

const (
	// silentAfter: seconds after which a rank's last report is outdated. Engines report four times a second.
	silentAfter = 5
	// jumpsBeyond: maximum seconds by which a gateway's clock may gain or lose against the reader's between two
	// reports.
	jumpsBeyond = 5
	// forgetAfter: seconds without a report after which a member or a gateway is forgotten.
	forgetAfter = 600
)

// Problem with a gateway's report, or with a rank's. That part is omitted.
type Problem struct{ Source, Why string }

func (p Problem) String() string { return p.Source + ": " + p.Why }

// Session of a gateway with a member's engine.
type Session struct{ Gateway, Member string }

// Sample is the merged result of one reading of all gateways.
type Sample struct {
	At      float64 // of the reader's clock
	Seconds float64 // since the previous reading; 0: there was none
	Epoch   uint64
	Gauges  Gauges
	Total   Counters          // since the first reading; they never shrink, even if members come and go
	Grown   Counters          // since the previous reading
	Steps   map[StepKey]Steps // the same, of steps
	Answers Latencies         // the same, of responses
	// LongestGap that ended recently between two tokens of a request, and the longest time in which a request that had
	// a token waited and no request got one: seconds, of the last two or three. With several gateways, Silence is at
	// most that of the least silent.
	LongestGap, Silence float64
	Problems            []Problem
	Flapping            []Session // sessions that broke repeatedly within the last minute
	// Whole: every gateway sent a plausible report, and every active member has new data.
	Whole bool
}

// Merger makes samples. It does not count activity before the first report of a source, or between two contradictory
// reports. Not for concurrent use.
type Merger struct {
	world    string
	last     *float64 // At
	counted  float64  // At of the last sample that counted steps
	total    Counters
	gateways map[string]*gatewaySeen
	members  map[string]*memberSeen
}

type gatewaySeen struct {
	incarnation uint64
	at, heard   float64 // of its clock, and of the reader's
	counters    Counters
	answers     Latencies
}

type memberSeen struct {
	heard    float64 // of the reader's clock, as are the others
	taken    float64 // when the counters were read
	told     float64 // when it reported them
	counters Counters
	epoch    uint64
	cells    map[StepKey]Steps
}

// NewMerger returns a Merger for a world of this name.
func NewMerger(world string) *Merger {
	return &Merger{world: world, gateways: map[string]*gatewaySeen{}, members: map[string]*memberSeen{}}
}

// Read is the result of a request to one gateway: its report, or an error.
type Read struct {
	Gateway string // the one requested, for messages
	Report  *tangramv1.TelemetryReport
	Err     error
}

// Take a reading of all gateways at one moment of the reader's clock, in seconds. Errors: an invalid moment, one not
// after the previous one, or no plausible report. Then only the baseline for later readings changes.
func (m *Merger) Take(at float64, reads []Read) (*Sample, error) {
	if !time(at) {
		return nil, fmt.Errorf("telemetry: the clock has the invalid value %v", at)
	}
	if m.last != nil && at <= *m.last {
		before := *m.last
		m.last = &at
		return nil, fmt.Errorf("telemetry: the clock went from %v to %v", before, at)
	}
	s := &Sample{At: at, Steps: map[StepKey]Steps{}, Answers: Latencies{}}
	if m.last != nil {
		s.Seconds = at - *m.last
	}
	m.last = &at
	reads = slices.Clone(reads)
	slices.SortFunc(reads, func(a, b Read) int { return cmp.Compare(a.Gateway, b.Gateway) })
	var good []*tangramv1.TelemetryReport
	named := map[string]bool{}
	for _, r := range reads {
		why := wrong(m.world, r.Report)
		if r.Err != nil {
			why = r.Err.Error()
		}
		if why == "" && named[r.Report.Gateway] {
			why = fmt.Sprintf("gateway %s has already reported", r.Report.Gateway)
		}
		var answers Latencies
		if why == "" {
			var err error
			if answers, err = read(r.Report.Latencies); err != nil {
				why = err.Error()
			}
		}
		if why != "" {
			s.Problems = append(s.Problems, Problem{r.Gateway, why})
			continue
		}
		named[r.Report.Gateway] = true
		if why := m.gateway(s, r.Report, answers); why != "" {
			s.Problems = append(s.Problems, Problem{r.Gateway, why})
			continue
		}
		good = append(good, r.Report)
		for _, rank := range r.Report.Ranks {
			if rank.Flapping {
				s.Flapping = append(s.Flapping, Session{r.Report.Gateway, rank.Member})
			}
		}
	}
	if len(good) == 0 {
		if len(reads) == 0 {
			return nil, fmt.Errorf("telemetry: no gateway was queried")
		}
		return nil, fmt.Errorf("telemetry: no gateway sent a usable report: %v", s.Problems)
	}
	m.ranks(s, good)
	m.total = m.total.plus(s.Grown)
	s.Total = m.total
	s.Whole = len(s.Problems) == 0 && s.Gauges.Silent == 0
	m.forget(at)
	return s, nil
}

// gateway counts a gateway's client latencies. It returns why the report cannot be used, or "".
func (m *Merger) gateway(s *Sample, r *tangramv1.TelemetryReport, answers Latencies) string {
	was := m.gateways[r.Gateway]
	now := &gatewaySeen{r.Incarnation, r.At, s.At, ofGateway(r), answers}
	m.gateways[r.Gateway] = now
	if was != nil && was.incarnation == now.incarnation {
		if now.at <= was.at {
			return fmt.Sprintf("its clock went from %v to %v", was.at, now.at)
		}
		if ahead := (now.at - was.at) - (s.At - was.heard); math.Abs(ahead) > jumpsBeyond {
			return fmt.Sprintf("its clock jumped by %.1f s", ahead)
		}
		grown, ok := now.counters.since(was.counters)
		felt, also := now.answers.since(was.answers)
		if !ok || !also {
			return "a counter shrank and is counted from zero again"
		}
		s.Grown = s.Grown.plus(grown)
		s.Answers.Merge(felt)
	}
	s.LongestGap = max(s.LongestGap, r.LongestGap)
	if r.Silence > 0 && (s.Silence == 0 || r.Silence < s.Silence) {
		s.Silence = r.Silence
	}
	s.Gauges.Homeless += int(r.Unassigned)
	s.Gauges.QueueAge = max(s.Gauges.QueueAge, r.UnassignedAgeSeconds)
	return ""
}

// ranks merges, for each member of the newest epoch, the report of the gateway that received it last.
func (m *Merger) ranks(s *Sample, reports []*tangramv1.TelemetryReport) {
	best := map[string]*tangramv1.RankReport{}
	for _, r := range reports {
		s.Epoch = max(s.Epoch, r.Epoch)
	}
	for _, r := range reports {
		for _, rank := range r.Ranks {
			if r.Epoch != s.Epoch {
				continue
			}
			if b := best[rank.Member]; b == nil || b.Load.GetTelemetry() == nil || rank.Load.GetTelemetry() != nil && rank.Age < b.Age {
				best[rank.Member] = rank
			}
		}
	}
	order := make([]*tangramv1.RankReport, 0, len(best))
	for _, rank := range best {
		order = append(order, rank)
	}
	slices.SortFunc(order, func(a, b *tangramv1.RankReport) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Member, b.Member))
	})
	s.Gauges.Ranks = len(order)
	var shared Counters // of steps: all ranks take the same
	told := false
	for _, rank := range order {
		t := rank.Load.GetTelemetry()
		if t == nil || rank.Age > silentAfter {
			s.Gauges.Silent++
			continue
		}
		s.gauges(rank.Load)
		was := m.members[rank.Member]
		if told := s.At - rank.Age; was != nil && told <= was.told {
			was.heard = s.At // another gateway reported it earlier
			continue
		}
		now := &memberSeen{heard: s.At, taken: s.At, told: s.At - rank.Age, counters: of(t), epoch: t.Epoch, cells: cellsOf(t)}
		m.members[rank.Member] = now
		if was == nil {
			continue
		}
		grown, ok := now.counters.since(was.counters)
		if !ok {
			s.Problems = append(s.Problems, Problem{rank.Member, "a counter shrank and is counted from zero again"})
			continue
		}
		// Steps are the world's; the other counters are the rank's own.
		shared.Steps, shared.PacedSteps = max(shared.Steps, grown.Steps), max(shared.PacedSteps, grown.PacedSteps)
		shared.Overruns, shared.Cut = max(shared.Overruns, grown.Overruns), max(shared.Cut, grown.Cut)
		shared.StepSeconds = max(shared.StepSeconds, grown.StepSeconds)
		grown.Steps, grown.PacedSteps, grown.Overruns, grown.Cut, grown.StepSeconds = 0, 0, 0, 0, 0
		s.Grown = s.Grown.plus(grown)
		// The report of a rank that was silent while others reported includes steps that are already counted.
		if told || was.taken < m.counted || now.epoch < was.epoch {
			continue
		}
		told = true
		if why := s.count(was, now); why != "" {
			s.Problems = append(s.Problems, Problem{rank.Member, why})
		}
	}
	if told {
		m.counted = s.At
	}
	s.Grown = s.Grown.plus(shared)
}

// count the steps of the world, as one of its ranks reports them.
func (s *Sample) count(was, now *memberSeen) string {
	before := was.cells
	if now.epoch != was.epoch {
		before = nil // counts start at 0 in each epoch
	}
	grown := map[StepKey]Steps{}
	for k, b := range before {
		c, there := now.cells[k]
		if !there || c.Steps < b.Steps || c.Seconds < b.Seconds || c.Decode < b.Decode || c.Context < b.Context || c.PromptTokens < b.PromptTokens || c.Before < b.Before {
			return "its steps shrank and are counted from zero again"
		}
	}
	for k, c := range now.cells {
		if b := before[k]; c.Steps > b.Steps {
			grown[k] = Steps{c.Steps - b.Steps, c.Seconds - b.Seconds, c.Decode - b.Decode, c.Context - b.Context, c.PromptTokens - b.PromptTokens, c.Before - b.Before}
		}
	}
	s.Steps = grown
	return ""
}

func cellsOf(t *tangramv1.RankTelemetry) map[StepKey]Steps {
	out := make(map[StepKey]Steps, len(t.Cells))
	for _, c := range t.Cells {
		out[StepKey{t.Epoch, c.Octave, c.Prefill}] = Steps{c.Steps, c.Seconds, c.Decode, c.Context, c.PromptTokens, c.Before}
	}
	return out
}

func (s *Sample) gauges(l *tangramv1.Load) {
	g, t := &s.Gauges, l.Telemetry
	g.Running += int(l.Running)
	g.Waiting += int(l.Waiting)
	g.Decoding += int(t.Decoding)
	g.QueuedTokens += int(t.QueuedTokens)
	g.ContextTokens += int(t.ContextTokens)
	g.GeneratedTokens += int(t.GeneratedTokens)
	g.ReservedTokens += int(t.ReservedTokens)
	g.WaitingTokens += int(t.WaitingTokens)
	g.QueueAge = max(g.QueueAge, t.QueueAge)
	g.KVPages += l.KvPages
	g.KVFree += l.KvFreePages
}

func (m *Merger) forget(at float64) {
	for name, g := range m.gateways {
		if at-g.heard > forgetAfter {
			delete(m.gateways, name)
		}
	}
	for name, r := range m.members {
		if at-r.heard > forgetAfter {
			delete(m.members, name)
		}
	}
}
