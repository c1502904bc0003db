package bench

import (
	"fmt"
	"io"
	"slices"
	"time"

	"tangram.dev/operator/pkg/load"
	"tangram.dev/operator/pkg/placement"
)

const (
	predictRanks   = 32 // workload A: DeepSeek-V3 with 288 slots on 32 ranks
	predictSlots   = 9
	predictLayers  = 58
	predictExperts = 256
)

// drift of the popularity: log-normal with AR(1), and how finely it is sampled.
type drift struct {
	name        string
	sigma, rho  float64
	assignments int // per layer and window
}

// Three drifts with different best predictors: fast, slow, and slow under much noise.
var drifts = []drift{
	{"ln1.0_rho.9", 1, .9, 32768},
	{"ln1.0_rho.98", 1, .98, 32768},
	{"ln0.5_rho.98_8192", .5, .98, 8192},
}

// contender is a way to forecast the next window. The adaptive one has no fixed candidate: it chooses among the 15 of
// load.Candidates, including the five fixed ones. The comparison picks the best of these afterwards. So the bench shows
// the cost of choosing online, not that no other forecast is better.
type contender struct {
	name  string
	fixed []load.Candidate
}

var contenders = []contender{
	{"adaptive", nil},
	{"last", []load.Candidate{{Window: 1, Power: 1}}},
	{"mean10", []load.Candidate{{Window: 10, Power: 1}}},
	{"ewma.5", []load.Candidate{{Decay: .5, Power: 1}}},
	{"ewma.8", []load.Candidate{{Decay: .8, Power: 1}}},
	{"shrink.9", []load.Candidate{{Window: 1, Power: .9}}},
}

// tally adds up mean and peak rank loads: sum(mean) over sum(max) is the balance.
type tally struct{ mean, peak float64 }

func (t *tally) add(ranks []float64) {
	sum, peak := 0.0, 0.0
	for _, v := range ranks {
		sum, peak = sum+v, max(peak, v)
	}
	t.mean, t.peak = t.mean+sum/float64(len(ranks)), t.peak+peak
}

func (t *tally) balance() float64 { return t.mean / t.peak }

// Predict places experts by the forecast of each contender and scores the placement on the following window; the oracle
// places by that window itself. Every window but the first is scored, also while the adaptive contender is still
// learning. Each forecast is made before the window is drawn.
func Predict(out, progress io.Writer, quick bool) error {
	seeds, windows := 5, 60
	if quick {
		seeds, windows = 2, 30
	}
	metrics := map[string]any{"seeds": seeds, "windows": windows, "ranks": predictRanks, "slots_per_rank": predictSlots,
		"layers": predictLayers, "experts": predictExperts}
	begin, worst, leastOverOracle := time.Now(), 0.0, 1.0
	for i, d := range drifts {
		scores, oracle, spent, err := d.run(seeds, windows)
		if err != nil {
			return fmt.Errorf("predict: %s: %w", d.name, err)
		}
		best := 1
		line := map[string]any{"bench": "predict", "drift": d.name, "oracle": oracle.balance()}
		for c := range contenders {
			line[contenders[c].name] = scores[c].balance()
			if c > 0 && scores[c].balance() > scores[best].balance() {
				best = c
			}
		}
		points := 100 * (scores[0].balance() - scores[best].balance())
		overOracle := scores[0].balance() / oracle.balance()
		line["best_fixed"], line["points_over_best_fixed"], line["over_oracle"] = contenders[best].name, points, overOracle
		line["adaptive_ms_per_window"] = spent
		if err := printLine(out, line); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(progress, "predict: %s: adaptive %.4f, best fixed %s %.4f (%+.2f points), oracle %.4f, %.1f ms per window\n", d.name,
			scores[0].balance(), contenders[best].name, scores[best].balance(), points, oracle.balance(), spent); err != nil {
			return err
		}
		metrics[d.name+"_points"], metrics[d.name+"_over_oracle"] = points, overOracle
		if i == 0 || points < worst {
			worst = points
		}
		leastOverOracle = min(leastOverOracle, overOracle)
	}
	metrics["seconds"] = time.Since(begin).Seconds()
	return printLine(out, Summary{Bench: "predict", Value: worst, Unit: "points of next-window balance over the best, known afterwards, of five fixed look-backs, worst drift",
		Ceiling: 1, Ratio: leastOverOracle, Metrics: metrics, Env: environment(quick)})
}

// run returns the tallies of the contenders and of the oracle, and the milliseconds per window of the adaptive one for
// all layers.
func (d drift) run(seeds, windows int) (scores []tally, oracle tally, spent float64, err error) {
	scores = make([]tally, len(contenders))
	var busy time.Duration
	for seed := range seeds {
		g, err := load.NewLogNormal(load.Shape{Layers: predictLayers, Experts: predictExperts, Assignments: d.assignments, Seed: uint64(seed + 1)}, d.sigma, d.rho)
		if err != nil {
			return nil, tally{}, 0, err
		}
		predictors := make([]*load.Predictor, len(contenders))
		for c := range contenders {
			if predictors[c], err = load.NewPredictor(predictLayers, predictExperts, contenders[c].fixed...); err != nil {
				return nil, tally{}, 0, err
			}
		}
		for w := range windows {
			plans := make([]load.Placement, len(contenders))
			for c, p := range predictors {
				if w == 0 {
					continue
				}
				start := time.Now()
				forecast := p.Forecast()
				if c == 0 {
					busy += time.Since(start)
				}
				if plans[c], err = packAll(forecast); err != nil {
					return nil, tally{}, 0, err
				}
			}
			window := g.Next()
			if w > 0 {
				for c := range contenders {
					if err := score(&scores[c], window, plans[c]); err != nil {
						return nil, tally{}, 0, err
					}
				}
				known, err := packAll(window)
				if err == nil {
					err = score(&oracle, window, known)
				}
				if err != nil {
					return nil, tally{}, 0, err
				}
			}
			for c, p := range predictors {
				start := time.Now()
				if err := p.Observe(window); err != nil {
					return nil, tally{}, 0, err
				}
				if c == 0 {
					busy += time.Since(start)
				}
			}
		}
	}
	return scores, oracle, float64(busy.Microseconds()) / 1000 / float64(seeds*windows), nil
}

func score(t *tally, window [][]float64, plan load.Placement) error {
	for l := range window {
		ranks, err := load.RankLoads(window[l], plan[l])
		if err != nil {
			return fmt.Errorf("layer %d: %w", l, err)
		}
		t.add(ranks)
	}
	return nil
}

// packAll returns the best placement for loads, by the packer of pkg/placement.
func packAll(loads [][]float64) (load.Placement, error) {
	problem := &placement.Problem{Ranks: slices.Repeat([]placement.Rank{{Slots: predictSlots}}, predictRanks)}
	for _, row := range loads {
		problem.Layers = append(problem.Layers, placement.Layer{Load: row})
	}
	var planner placement.Planner
	best, err := planner.Full(problem, placement.Options{})
	if err != nil {
		return nil, err
	}
	return best.Placement.Lists(), nil
}
