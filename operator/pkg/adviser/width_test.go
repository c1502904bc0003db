package adviser

import (
	"errors"
	"math/bits"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/policy"
	"tangram.dev/operator/pkg/simulator"
	"tangram.dev/operator/pkg/telemetry"
)

// widened feeds gateway reports to an adviser wherever the simulator calls a policy of the width.
type widened struct {
	told
	serves       kernels.Shape
	unrepairable int // ranks
	refused      map[string]bool
}

func (p *widened) Decide(t policy.Telemetry, s policy.State) policy.Decision {
	sample := &telemetry.Sample{At: t.At, Seconds: t.At - p.before.At, Epoch: p.epoch, Whole: true, Steps: p.steps, Answers: telemetry.Latencies{},
		Gauges: telemetry.Gauges{Running: t.Running, Decoding: t.Decoding, Waiting: t.Waiting, QueuedTokens: t.QueuedTokens, ContextTokens: t.ContextTokens,
			GeneratedTokens: t.Generated, ReservedTokens: t.Reserved, WaitingTokens: t.WaitingNeed},
		Total: telemetry.Counters{Arrived: t.Arrived, PromptTokens: t.PromptTokens, ReusedTokens: t.ReusedTokens, Finished: t.Finished,
			OutputTokens: t.OutputTokens, Steps: t.Steps, StepSeconds: t.StepSeconds}}
	for range t.Finished - p.before.Finished {
		sample.Answers.Note(t.Felt.FirstToken, t.Felt.PerToken*9, 10)
	}
	p.before, p.steps = t, map[telemetry.StepKey]telemetry.Steps{}
	d := p.a.Widen(sample, World{View: p.v, Shape: s.Shape, Epoch: p.epoch, KVBytes: p.kv, Rates: s.Rates, Pods: s.Pods,
		Price: func(_, to kernels.Shape) (costmodel.Transition, error) {
			for _, o := range s.Options {
				if o.Shape == to {
					return o.Switch, nil
				}
			}
			return costmodel.Transition{}, errors.New("none of the world's")
		},
		Repairable: func(s kernels.Shape) error {
			if s.Ranks == p.unrepairable {
				return errors.New("a loss could not be repaired")
			}
			return nil
		}})
	for _, r := range d.Rejected {
		p.refused[r.Why.Text] = true
	}
	if d.Held {
		p.held[d.Why.Text]++
	}
	if d.Switch {
		p.decided = append(p.decided, d)
	}
	return d
}

func (p *widened) Observe(s kernels.Shape, w costmodel.Work, seconds float64) {
	if s != p.serves { // steps of another layout have another epoch
		p.serves = s
		p.epoch++
	}
	k := telemetry.StepKey{Epoch: p.epoch, Octave: uint32(bits.Len(uint(w.Decode+w.Prefill)) - 1), Prefill: w.Prefill > 0}
	was := p.steps[k]
	p.steps[k] = telemetry.Steps{Steps: was.Steps + 1, Seconds: was.Seconds + seconds, Decode: was.Decode + uint64(w.Decode), Context: was.Context + uint64(w.Decode*w.Context),
		PromptTokens: was.PromptTokens + uint64(w.Prefill), Before: was.Before + uint64(w.Prefill*w.Before)}
}

// A world grows with its load, up to its limit, over widths that are repairable and have tables. It shrinks when the
// load falls.
func TestAdviserScalesWidthWithLoad(t *testing.T) {
	v := view(t)
	table, err := kernels.Open(model)
	require.NoError(t, err)
	var shapes []kernels.Shape
	for _, n := range []int{2, 4, 6, 8} {
		shapes = append(shapes, kernels.Expert(n))
	}
	config, err := simulator.Build(v, table, "trtllm", "power_law_1.2", simulator.H200(), shapes...)
	require.NoError(t, err)
	config.Noise, config.PodSeconds, config.RankTokens = .1, 30, 2048
	config.TTFT, config.TPOT, config.Share = 2, .1, .9
	a, err := New(Options{Policy: Calibrated, Prior: Prior{model, "sglang", "power_law_1.2"},
		Width: Range{SLO: policy.SLO{TTFT: 2, TPOT: .1, Share: .9}, Min: 2, Max: 10, Step: 2}})
	require.NoError(t, err)
	p := &widened{told: told{t: t, a: a, v: v, kv: 40e9, steps: map[telemetry.StepKey]telemetry.Steps{}, held: map[string]int{}}, unrepairable: 4, refused: map[string]bool{}}
	requests := simulator.Generate([]simulator.Rate{{Seconds: 300, PerSecond: 5}, {Seconds: 600, PerSecond: 90}, {Seconds: 1300, PerSecond: 5}}, 1500, 100, 3) // the past is looked at for 900 s
	r, err := simulator.Run(config, requests, p, nil)
	require.NoError(t, err)
	require.NotEmpty(t, r.Switches)
	widest := 0
	for _, d := range p.decided {
		require.NotEqual(t, 4, d.To.Ranks, "it could not be repaired")
		require.LessOrEqual(t, d.To.Ranks, 8)
		widest = max(widest, d.To.Ranks)
	}
	require.Greater(t, widest, 4)
	require.Equal(t, 2, p.decided[len(p.decided)-1].To.Ranks)
	require.True(t, p.refused["The planner or the memory limit rejects this shape: a loss could not be repaired."])
	require.True(t, p.refused["The planner or the memory limit rejects this shape: none of the world's."], "ten ranks are looked at, by what eight extrapolate to")
	require.Greater(t, float64(r.Within)/float64(r.Requests), .5)
}

func TestWidthIsNotDecided_WhenInputIsIncomplete(t *testing.T) {
	for want, change := range map[string]func(*Range, *telemetry.Sample, *World){
		"from 4 to 2 ranks":                      func(r *Range, _ *telemetry.Sample, _ *World) { r.Min, r.Max = 4, 2 },
		"must be multiples of the ranks per pod": func(r *Range, _ *telemetry.Sample, _ *World) { r.Step = 3 },
		"no layout":                              func(_ *Range, _ *telemetry.Sample, w *World) { w.Shape = kernels.Shape{} },
		"1 of 2 ranks":                           func(_ *Range, s *telemetry.Sample, _ *World) { s.Whole, s.Gauges.Silent, s.Gauges.Ranks = false, 1, 2 },
		"are incomplete: g: down": func(_ *Range, s *telemetry.Sample, _ *World) {
			s.Whole, s.Problems = false, []telemetry.Problem{{Source: "g", Why: "down"}}
		},
		"0 of the first 64 steps": func(*Range, *telemetry.Sample, *World) {},
	} {
		r := Range{SLO: policy.SLO{TTFT: 2, Share: .9}, Min: 2, Max: 8, Step: 2}
		s, w := &telemetry.Sample{At: 1, Whole: true}, World{View: view(t), Shape: kernels.Expert(2)}
		change(&r, s, &w)
		a, err := New(Options{Policy: Calibrated, Prior: Prior{model, "sglang", "power_law_1.2"}, Width: r})
		require.NoError(t, err)
		d := a.Widen(s, w)
		require.True(t, d.Held)
		require.Contains(t, d.Why.Text, want)
	}
}
