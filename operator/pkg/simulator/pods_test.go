package simulator

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/policy"
)

// widths of a small model, of 3 to 6 ranks.
func widths(t testing.TB) Config {
	t.Helper()
	all, err := geometry.Public()
	require.NoError(t, err)
	for _, g := range all {
		if g.Model != "Qwen3-30B-A3B" {
			continue
		}
		v, err := geometry.New(g)
		require.NoError(t, err)
		table, err := kernels.Open(g.Model)
		require.NoError(t, err)
		h := H200()
		h.Memory.RankBytes = 48e9
		_, err = Build(v, table, "trtllm", "power_law_1.2", h, kernels.Expert(2))
		require.ErrorContains(t, err, "headroom for repair", "two ranks could not repair a loss")
		c, err := Build(v, table, "trtllm", "power_law_1.2", h, kernels.Expert(3), kernels.Expert(4), kernels.Expert(6))
		require.NoError(t, err)
		c.PodSeconds, c.RankTokens = 60, 2048
		return c
	}
	t.Fatal("no geometry")
	return Config{}
}

// A wider world's newest rank receives its share of the experts, and a narrower one's ranks divide those of the leaving
// ones.
func TestPriceOfWidths(t *testing.T) {
	c := widths(t)
	experts := float64(48*128) * 3 * 2048 * 768 * 2
	share := func(n float64) float64 { return experts / n }
	require.InEpsilon(t, share(4), float64(c.Switches[0][1].BusiestBytes), .05)
	require.InEpsilon(t, share(6), float64(c.Switches[0][2].BusiestBytes), .05)
	require.InEpsilon(t, share(3)-share(4), float64(c.Switches[1][0].BusiestBytes), .1)
	require.InEpsilon(t, share(3)-share(6), float64(c.Switches[2][0].BusiestBytes), .1)
}

// timetable decides on shapes at given times.
type timetable struct {
	at []float64
	to []kernels.Shape
}

func (p *timetable) Decide(t policy.Telemetry, s policy.State) policy.Decision {
	if len(p.at) == 0 || t.At < p.at[0] {
		return policy.Decision{To: s.Shape}
	}
	to := p.to[0]
	p.at, p.to = p.at[1:], p.to[1:]
	return policy.Decision{Switch: true, To: to}
}
func (*timetable) Observe(kernels.Shape, costmodel.Work, float64) {}

// A wider world starts when its pods are ready, and they cost from the request for them; a narrower one starts
// immediately. Pods that are no longer needed cost no more.
func TestPodsStartAndCost(t *testing.T) {
	c := widths(t)
	requests := Generate([]Rate{{600, 5}}, 500, 50, 3)
	end := requests[len(requests)-1].At
	r, err := Run(c, requests, &timetable{at: []float64{100, 300, 400, 430}, to: []kernels.Shape{kernels.Expert(6), kernels.Expert(4), kernels.Expert(6), kernels.Expert(4)}}, nil)
	require.NoError(t, err)
	require.Len(t, r.Switches, 2, "the third was taken back before its pods were there")
	require.InDelta(t, 160, r.Switches[0].At, 1.5)
	require.InDelta(t, 300, r.Switches[1].At, 1.5)
	require.Equal(t, "ExpertParallel/3", r.Switches[0].From)
	require.Equal(t, "ExpertParallel/4", r.Switches[1].To)
	require.InDelta(t, 3*100+6*200+4*100+6*30+4*(r.Makespan-430), r.RankSeconds, 20)
	require.Equal(t, len(requests), r.Requests)
	require.Greater(t, r.Makespan, end)
}

// Standby ranks join immediately, others are started in their place. Leaving ranks become standby instead of ones still
// starting. All of them cost.
func TestStandbyRanks(t *testing.T) {
	c := widths(t)
	c.Standby = 2
	requests := Generate([]Rate{{600, 5}}, 500, 50, 3)
	plan := func() *timetable {
		return &timetable{at: []float64{100, 130, 300}, to: []kernels.Shape{kernels.Expert(4), kernels.Expert(6), kernels.Expert(4)}}
	}
	r, err := Run(c, requests, plan(), nil)
	require.NoError(t, err)
	require.Len(t, r.Switches, 3)
	require.InDelta(t, 100, r.Switches[0].At, 1.5)
	require.InDelta(t, 160, r.Switches[1].At, 1.5, "one stood by, the other was being started for that since 100 s")
	require.InDelta(t, 300, r.Switches[2].At, 1.5)
	// 3 and 2; 4 and 2 from 100 s; 6 and 2 from 130 s; 4 and 2 from 300 s.
	require.InDelta(t, 5*100+6*30+8*170+6*(r.Makespan-300), r.RankSeconds, 20)
	c.Standby = 0
	without, err := Run(c, requests, plan(), nil)
	require.NoError(t, err)
	require.InDelta(t, 190, without.Switches[0].At, 1.5, "six were wanted before four had come")
	c.Standby, c.Nodes = 1, []Nodes{{0, 4}}
	_, err = Run(c, requests, policy.Static{}, nil)
	require.ErrorContains(t, err, "room is not modelled")
}

// With room for four in the cluster, six start only when it has more; policies see it.
func TestRun_WhenNodesAreShort(t *testing.T) {
	c := widths(t)
	c.Nodes = []Nodes{{0, 4}, {400, 8}}
	requests := Generate([]Rate{{600, 5}}, 500, 50, 3)
	told := &refusals{timetable: timetable{at: []float64{100}, to: []kernels.Shape{kernels.Expert(6)}}}
	r, err := Run(c, requests, told, nil)
	require.NoError(t, err)
	require.Len(t, r.Switches, 1)
	require.InDelta(t, 460, r.Switches[0].At, 1.5)
	require.InDelta(t, 300, told.refused, 3)
	require.Equal(t, 4, told.ready)
}

type refusals struct {
	timetable
	refused, last float64 // seconds
	ready         int
}

func (p *refusals) Decide(t policy.Telemetry, s policy.State) policy.Decision {
	if s.Pods.Refused {
		p.refused += t.At - p.last
		p.ready = s.Pods.Ready
	}
	p.last = t.At
	return p.timetable.Decide(t, s)
}

// The client latencies that policies see equal those of the result for the same requests.
func TestPoliciesReceiveClientLatencies(t *testing.T) {
	c := widths(t)
	c.TTFT, c.TPOT = .2, .02
	requests := Generate([]Rate{{50, 20}}, 2000, 30, 5)
	heard := &listener{}
	r, err := Run(c, requests, heard, nil)
	require.NoError(t, err)
	require.NotZero(t, heard.last.Answers)
	require.Less(t, heard.last.Answers, r.Requests+1)
	require.InDelta(t, float64(r.Within)/float64(r.Requests), heard.last.Within, .05)
	require.Greater(t, heard.last.FirstToken, r.FirstToken.P50)
}

type listener struct{ last policy.Felt }

func (l *listener) Decide(t policy.Telemetry, s policy.State) policy.Decision {
	if t.Felt.Answers >= l.last.Answers {
		l.last = t.Felt
	}
	return policy.Decision{To: s.Shape}
}
func (*listener) Observe(kernels.Shape, costmodel.Work, float64) {}

// steps wants two replicas at the first two calls, then one.
type steps struct{ asked int }

func (*steps) Every() float64 { return 100 }
func (s *steps) Scale(r Replicas) int {
	s.asked++
	if s.asked == 1 || s.asked == 2 {
		return 2
	}
	return 1
}

// Every request is answered by some replica. A new one costs immediately and serves later; a removed one costs until
// its last response.
func TestReplicas(t *testing.T) {
	c := widths(t)
	one := c
	one.Modes, one.Switches = c.Modes[:1], c.Switches[:1]
	requests := Generate([]Rate{{500, 8}}, 500, 50, 3)
	r, err := RunReplicas(one, requests, 1, 2, &steps{})
	require.NoError(t, err)
	require.Equal(t, len(requests), r.Requests)
	require.Equal(t, len(requests), r.Within, "no SLO: any time will do")
	tokens := 0
	for _, q := range requests {
		tokens += q.Output
	}
	require.Equal(t, uint64(tokens), r.OutputTokens)
	require.Len(t, r.Switches, 2)
	require.InDelta(t, 3*(r.Makespan+200), r.RankSeconds, 3*10, "a second one from 100 to 300 s")
	again, err := RunReplicas(one, requests, 1, 2, &steps{})
	require.NoError(t, err)
	require.Equal(t, r, again)
	_, err = RunReplicas(c, requests, 1, 2, &steps{})
	require.ErrorContains(t, err, "replicas have one shape")
	_, err = RunReplicas(one, requests, 2, 1, &steps{})
	require.Error(t, err)
}
