package telemetry

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// fine is a valid report of one gateway and one rank.
func fine(at float64) *tangramv1.TelemetryReport {
	return &tangramv1.TelemetryReport{World: "w", Gateway: "g", Incarnation: 1, At: at, Epoch: 4, Arrived: 9, Answered: 5, Failed: 1, Left: 1, OutputTokens: 50,
		Latencies: []*tangramv1.LatencyCell{{First: 3, Between: -20, Requests: 5, Tokens: 50}},
		Ranks: []*tangramv1.RankReport{{Member: "m", Age: .1, Load: &tangramv1.Load{Running: 3, Waiting: 1, KvPages: 10, KvFreePages: 4, Telemetry: &tangramv1.RankTelemetry{
			Decoding: 2, QueuedTokens: 11, ContextTokens: 12, GeneratedTokens: 13, ReservedTokens: 14, WaitingTokens: 15, QueueAge: 1.5, Arrived: 9, Steps: 7, StepSeconds: 2, PacedSteps: 7, PaceOverruns: 1, Epoch: 4,
			Cells: []*tangramv1.StepCell{{Octave: 1, Steps: 7, Seconds: 2, Decode: 14, Context: 90}}}}}}}
}

func TestInvalidReportsAreRejected(t *testing.T) {
	load := func(r *tangramv1.TelemetryReport) *tangramv1.Load { return r.Ranks[0].Load }
	nan, inf := math.NaN(), math.Inf(1)
	for want, spoil := range map[string]func(*tangramv1.TelemetryReport){
		`world "v"`:                    func(r *tangramv1.TelemetryReport) { r.World = "v" },
		"names no gateway":             func(r *tangramv1.TelemetryReport) { r.Gateway = "" },
		"times NaN":                    func(r *tangramv1.TelemetryReport) { r.At = nan },
		"times 1 and +Inf":             func(r *tangramv1.TelemetryReport) { r.UnassignedAgeSeconds = inf },
		"no request is without a rank": func(r *tangramv1.TelemetryReport) { r.UnassignedAgeSeconds = 1 },
		"9 requests arrived, but 22":   func(r *tangramv1.TelemetryReport) { r.Answered = 20 },
		"listed twice":                 func(r *tangramv1.TelemetryReport) { r.Ranks = append(r.Ranks, r.Ranks[0]) },
		"invalid age -1":               func(r *tangramv1.TelemetryReport) { r.Ranks[0].Age = -1 },
		"m: 11 of 10 pages":            func(r *tangramv1.TelemetryReport) { load(r).KvFreePages = 11 },
		"m: 4 of 3 running":            func(r *tangramv1.TelemetryReport) { load(r).Telemetry.Decoding = 4 },
		"m: invalid times NaN and 2":   func(r *tangramv1.TelemetryReport) { load(r).Telemetry.QueueAge = nan },
		"m: invalid times 1.5 and -2":  func(r *tangramv1.TelemetryReport) { load(r).Telemetry.StepSeconds = -2 },
		"7 steps, 8 paced":             func(r *tangramv1.TelemetryReport) { load(r).Telemetry.PacedSteps = 8 },
		"m: invalid steps":             func(r *tangramv1.TelemetryReport) { load(r).Telemetry.Cells[0].Seconds = nan },
		`member "" is empty`:           func(r *tangramv1.TelemetryReport) { r.Ranks[0].Member = "" },
		"7 too long, 1 truncated": func(r *tangramv1.TelemetryReport) {
			load(r).Telemetry.PaceOverruns, load(r).Telemetry.PacedStepsTruncated = 7, 1
		},
		"65 kinds of steps": func(r *tangramv1.TelemetryReport) {
			for len(load(r).Telemetry.Cells) < 65 {
				load(r).Telemetry.Cells = append(load(r).Telemetry.Cells, load(r).Telemetry.Cells[0])
			}
		},
		"decode:91":                      func(r *tangramv1.TelemetryReport) { load(r).Telemetry.Cells[0].Decode = 91 },
		"between:-20 one:true":           func(r *tangramv1.TelemetryReport) { r.Latencies[0].One, r.Latencies[0].Tokens = true, 5 },
		"9 requests arrived, but 26":     func(r *tangramv1.TelemetryReport) { r.Failed = 20 },
		"9 requests arrived, but 16":     func(r *tangramv1.TelemetryReport) { r.Left = 10 },
		"seconds:2 decode:14 context:90": func(r *tangramv1.TelemetryReport) { load(r).Telemetry.Cells[0].Steps = 0 },
		"octave:32":                      func(r *tangramv1.TelemetryReport) { load(r).Telemetry.Cells[0].Octave = 32 },
		"first:-81":                      func(r *tangramv1.TelemetryReport) { r.Latencies[0].First = -81 },
		"between:97":                     func(r *tangramv1.TelemetryReport) { r.Latencies[0].Between = 97 },
		"one:true":                       func(r *tangramv1.TelemetryReport) { r.Latencies[0].One, r.Latencies[0].Between = true, 0 },
		"invalid steps":                  func(r *tangramv1.TelemetryReport) { load(r).Telemetry.Cells[0].Prefill = true },
		"latencies: invalid cell":        func(r *tangramv1.TelemetryReport) { r.Latencies[0].First = 1000 },
		"duplicate cell":                 func(r *tangramv1.TelemetryReport) { r.Latencies = append(r.Latencies, r.Latencies[0]) },
		"cell first:3 ":                  func(r *tangramv1.TelemetryReport) { r.Latencies[0].Tokens = 1 },
	} {
		r := fine(1)
		spoil(r)
		m := NewMerger("w")
		_, err := m.Take(1, []Read{{Gateway: "10.0.0.1", Report: r}})
		require.Error(t, err, want)
		text := err.Error()
		text = strings.Join(strings.Fields(text), " ") // the wire's own text has one or two spaces
		require.Contains(t, text, strings.TrimSpace(want))
		require.Contains(t, text, "10.0.0.1", "who said so")
		s, err := m.Take(2, []Read{{Gateway: "10.0.0.1", Report: fine(2)}})
		require.NoError(t, err, "what is right afterwards is taken")
		require.Zero(t, s.Total, "of what could not be right nothing is counted")
	}
	m := NewMerger("w")
	for _, at := range []float64{math.NaN(), math.Inf(1), -1} {
		_, err := m.Take(at, nil)
		require.ErrorContains(t, err, "the clock has the invalid value")
	}
	_, err := m.Take(1, nil)
	require.ErrorContains(t, err, "no gateway was queried")
	_, err = m.Take(1, nil)
	require.ErrorContains(t, err, "the clock went from 1 to 1")
	reads := []Read{{Gateway: "y", Report: fine(2)}, {Gateway: "x", Report: fine(1)}}
	s, err := m.Take(1.5, reads)
	require.NoError(t, err)
	require.InDelta(t, .5, s.Seconds, 1e-12)
	require.Equal(t, []Problem{{"y", "gateway g has already reported"}}, s.Problems, "in the order of their names")
	require.Equal(t, "y", reads[0].Gateway, "the caller's are as they were")
	less := fine(2)
	less.Latencies[0].Requests, less.Latencies[0].Tokens = 4, 60
	_, err = m.Take(1.6, []Read{{Gateway: "x", Report: less}})
	require.ErrorContains(t, err, "a counter shrank")
	_, err = m.Take(2, []Read{{Gateway: "x", Err: errors.New("connection refused")}, {Gateway: "y"}})
	require.ErrorContains(t, err, "connection refused")
	require.ErrorContains(t, err, "no report")
}

func TestClockJumps(t *testing.T) {
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

func TestStaleRanksAreReported(t *testing.T) {
	m := NewMerger("w")
	r := fine(1)
	r.Ranks = append(r.Ranks, &tangramv1.RankReport{Member: "quiet", Rank: 1, Load: &tangramv1.Load{Running: 9, KvFreePages: 1}}, &tangramv1.RankReport{Member: "late", Rank: 2, Age: silentAfter + 1, Load: r.Ranks[0].Load})
	s, err := m.Take(1, []Read{{Gateway: "g", Report: r}})
	require.NoError(t, err)
	require.False(t, s.Whole)
	require.Equal(t, Gauges{Running: 3, Decoding: 2, Waiting: 1, QueuedTokens: 11, ContextTokens: 12, GeneratedTokens: 13, ReservedTokens: 14, WaitingTokens: 15,
		QueueAge: 1.5, KVPages: 10, KVFree: 4, Ranks: 3, Silent: 2}, s.Gauges)

	// Gateway h reports a newer epoch, of which "gone" is no member. Gateways k and a have no data of "late" yet.
	other := fine(50)
	other.Gateway, other.Epoch, other.Unassigned, other.UnassignedAgeSeconds = "h", 5, 2, 9
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

// Problems of ranks are in the order of the ranks.
func TestProblemsAreOrderedByRank(t *testing.T) {
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

// Values at the limits of a valid report.
func TestReportsAtLimitsAreAccepted(t *testing.T) {
	r := fine(1)
	l := r.Ranks[0].Load
	l.KvFreePages, l.Telemetry.PaceOverruns, l.Telemetry.PacedStepsTruncated, r.Left = l.KvPages, 3, 4, 3
	l.Telemetry.Cells = nil
	for octave := range uint32(mostOctaves) {
		l.Telemetry.Cells = append(l.Telemetry.Cells, &tangramv1.StepCell{Octave: octave, Steps: 1, Decode: 1, Context: 1},
			&tangramv1.StepCell{Octave: octave, Prefill: true, Steps: 1, PromptTokens: 1})
	}
	r.Ranks = append(r.Ranks, &tangramv1.RankReport{Member: "n"})
	_, err := NewMerger("w").Take(0, []Read{{Gateway: "g", Report: r}})
	require.NoError(t, err)
}
