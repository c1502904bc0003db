package bench

import (
	"fmt"
	"io"
	"slices"

	"tangram.dev/operator/internal/simcli"
	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/policy"
	"tangram.dev/operator/pkg/simulator"
)

// crossoverWorlds are models with numbers of ranks.
var crossoverWorlds = []struct {
	model string
	ranks int
}{{"Qwen3-235B-A22B", 8}, {"Qwen3-30B-A3B", 8}, {"Qwen3-30B-A3B", 4}}

// learner lets a cost model observe the measurements of a calibration.
type learner struct {
	policy.Static
	model *costmodel.Model
}

func (l learner) Observe(s kernels.Shape, w costmodel.Work, seconds float64) {
	_ = l.model.Observe(s, w, seconds) // a rejected step changes nothing
}

// Crossover determines where modes cross on measured kernels, and the cost of choosing by the published threshold of
// 256 requests or by the cost model. The model starts from another engine's table, corrected by a calibration at 2,048
// tokens of context with 10 % noise. The cost is a step's duration over that in the better mode, at the worst number of
// requests.
func Crossover(out, progress io.Writer, quick bool) error {
	engines, routings, contexts := engines, []string{"balanced", "power_law_1.01", "power_law_1.2"}, []int{512, 2048, 8192}
	if quick {
		routings = routings[2:]
	}
	var fixed, learned []float64
	for _, world := range crossoverWorlds {
		all, err := simcli.Crossovers(world.model, world.ranks, engines, routings, contexts)
		if err != nil {
			return fmt.Errorf("crossover: %w", err)
		}
		for _, c := range all {
			o := simcli.Defaults()
			o.Model, o.Ranks, o.Truth, o.Routing = world.model, world.ranks, c.Engine, c.Routing
			byFixed, byLearned, err := costsOfChoosing(o, c.Context)
			if err != nil {
				return fmt.Errorf("crossover: %s on %s: %w", world.model, c.Engine, err)
			}
			fixed, learned = append(fixed, byFixed), append(learned, byLearned)
			if err := printLine(out, map[string]any{"bench": "crossover", "model": world.model, "ranks": world.ranks, "truth": c.Engine, "routing": c.Routing, "context": c.Context,
				"tensor_up_to": c.Below, "expert_from": c.Above, "looked_up_to": simcli.MostCrossing, "by_256": byFixed, "by_learned": byLearned}); err != nil {
				return err
			}
			if _, err := fmt.Fprintf(progress, "crossover: %s on %d ranks: %s, %s, %d tokens: %s; by 256 requests %.3f, by the cost model %.3f\n", world.model, world.ranks, c.Engine, c.Routing,
				c.Context, c.Words(), byFixed, byLearned); err != nil {
				return err
			}
		}
	}
	worst := slices.Max(learned)
	return printLine(out, Summary{Bench: "crossover", Value: worst, Unit: "a step in the mode that the learned cost model takes for faster, over one in the faster mode, the worst of 1 to 512 requests",
		Ceiling: 1, Ratio: worst, Env: environment(quick), Metrics: map[string]any{"cases": len(learned), "median": middle(learned), "over_by_256": worst / slices.Max(fixed), "by_256_worst": slices.Max(fixed), "by_256_median": middle(fixed)}})
}

// costsOfChoosing a mode by 256 requests, and by a calibrated model.
func costsOfChoosing(o simcli.Options, context int) (byFixed, byLearned float64, err error) {
	v, err := simcli.View(o.Model, o.Ranks)
	if err != nil {
		return 0, 0, err
	}
	table, err := kernels.Open(o.Model)
	if err != nil {
		return 0, 0, err
	}
	shapes := []kernels.Shape{kernels.Expert(o.Ranks), kernels.Tensor(o.Ranks)}
	var truth, priors []*kernels.Step
	c := simulator.Config{Noise: o.Noise, Seed: o.Seed}
	for _, s := range shapes {
		at, err := kernels.At(table, v, o.Truth, o.Routing, s)
		if err != nil {
			return 0, 0, err
		}
		prior, err := kernels.At(table, v, simcli.Other(o.Truth), o.Routing, s)
		if err != nil {
			return 0, 0, err
		}
		truth, priors = append(truth, at), append(priors, prior)
		c.Modes = append(c.Modes, simulator.Mode{Truth: at})
	}
	l := learner{model: costmodel.New(costmodel.Options{}, priors...)}
	simulator.Calibrate(c, l)
	published := policy.Published().High
	for n := 1; n <= simcli.MostCrossing; n++ {
		var seconds, thought [2]float64
		for i, s := range shapes {
			seconds[i] = truth[i].Decode(n, context).Sum()
			e, _, err := l.model.Step(s, costmodel.Work{Decode: n, Context: context})
			if err != nil {
				return 0, 0, err
			}
			thought[i] = e.Seconds
		}
		best := min(seconds[0], seconds[1])
		chosen := seconds[1] // Tensor
		if n > published {
			chosen = seconds[0]
		}
		byFixed = max(byFixed, chosen/best)
		if chosen = seconds[0]; thought[1] < thought[0] {
			chosen = seconds[1]
		}
		byLearned = max(byLearned, chosen/best)
	}
	return byFixed, byLearned, nil
}
