package bench

import (
	"fmt"
	"io"
	"slices"

	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/policy"
	"tangram.dev/operator/pkg/simulator"
)

// command switches to a shape at a given second.
type command struct {
	policy.Static
	at float64
	to kernels.Shape
}

func (c *command) Decide(t policy.Telemetry, s policy.State) policy.Decision {
	if c.at == 0 || t.At < c.at {
		return policy.Decision{To: s.Shape}
	}
	c.at = 0
	return policy.Decision{Switch: true, To: c.to, Why: policy.Reason{Text: "as commanded"}}
}

// shareOf returns the share within the SLO of the requests that arrived between two times.
func shareOf(r simulator.Result, from, to float64) float64 {
	n, within := 0, 0
	for _, a := range r.Answers {
		if a.Arrival >= from && a.Arrival < to {
			n++
			if a.Within {
				within++
			}
		}
	}
	return float64(within) / float64(max(n, 1))
}

// SLODynamics simulates how a step of the load affects SLO attainment, 4 -> 6 ranks and 6 -> 4. It compares several
// ways to change the width at the same command. It also simulates a growing load under static widths and the width
// policy.
func SLODynamics(out, progress io.Writer, quick bool) error {
	b, err := newWidthBench("trtllm")
	if err != nil {
		return err
	}
	const step, commanded, until, window, prompt, output = 120.0, 150.0, 420.0, 10.0, 2000, 600
	// Four ranks keep the SLO at low, and six at high.
	low, high := 12.0, 28.0
	way := func(name string, pods, stall float64, from, to int, rates []simulator.Rate) (float64, error) {
		c := b.ours
		c.Start, c.PodSeconds = from-widthLeast, pods
		c.Switches = slices.Clone(c.Switches)
		row := slices.Clone(c.Switches[from-widthLeast])
		row[to-widthLeast].Flips += int(stall / c.Rates.FlipSeconds) // serving is stopped meanwhile
		c.Switches[from-widthLeast] = row
		var p policy.Policy = &command{at: commanded, to: kernels.Expert(to)}
		if from == to {
			p = policy.Static{}
		}
		r, err := simulator.Run(c, simulator.Generate(rates, prompt, output, 3), p, nil)
		if err != nil {
			return 0, err
		}
		var series []float64
		back := -1.0 // seconds from the command until the SLO is kept again
		for at := 0.0; at < until; at += window {
			s := shareOf(r, at, at+window)
			series = append(series, s)
			switch {
			case s < widthSLO.Share:
				back = -1
			case back < 0 && at+window > commanded:
				back = max(at-commanded, 0)
			}
		}
		ranks := r.RankSeconds / r.Makespan
		if err := printLine(out, map[string]any{"bench": "slo-dynamics", "way": name, "from": from, "to": to, "within_each_10_s": series, "seconds_to_hold": back, "within_after_command": shareOf(r, commanded, until),
			"within_per_rank": shareOf(r, commanded, until) / ranks, "mean_ranks": ranks}); err != nil {
			return 0, err
		}
		_, err = fmt.Fprintf(progress, "slo-dynamics: %d -> %d, %s: %.3f within after the command, the SLO is held from %.0f s on\n", from, to, name, shareOf(r, commanded, until), back)
		return back, err
	}
	up := []simulator.Rate{{Seconds: step, PerSecond: low}, {Seconds: until - step, PerSecond: high}}
	down := []simulator.Rate{{Seconds: step, PerSecond: high}, {Seconds: until - step, PerSecond: low}}
	ours := 0.0
	for _, x := range []struct {
		name     string
		pods     float64
		stall    float64
		from, to int
		rates    []simulator.Rate
	}{{"ours, pods stand by", 1, 0, 4, 6, up}, {"ours, pods start", podSeconds, 0, 4, 6, up}, {"cold restart", 0, podSeconds, 4, 6, up}, {"nothing", 0, 0, 4, 4, up},
		{"ours", 0, 0, 6, 4, down}, {"cold restart", 0, podSeconds, 6, 4, down}, {"nothing", 0, 0, 6, 6, down}} {
		back, err := way(x.name, x.pods, x.stall, x.from, x.to, x.rates)
		if err != nil {
			return fmt.Errorf("slo-dynamics: %s: %w", x.name, err)
		}
		if x.name == "ours, pods stand by" {
			ours = back
		}
	}
	most, err := b.growing(out, quick)
	if err != nil {
		return err
	}
	return printLine(out, Summary{Bench: "slo-dynamics", Value: ours, Unit: "seconds from the command 4 -> 6 until the SLO is held, pods stand by", Ceiling: 1, Ratio: ours, Env: environment(quick),
		Metrics: map[string]any{"policy_rate_over_8": most["policy"] / most["8 ranks"], "most_rate_policy": most["policy"], "most_rate_4": most["4 ranks"], "most_rate_8": most["8 ranks"], "rank_hours_policy_over_8": most["hours"]}})
}

// growing determines up to which rate the SLO is kept.
func (b *widthBench) growing(out io.Writer, quick bool) (map[string]float64, error) {
	const piece, pieces = 60.0, 40
	var rates []simulator.Rate
	for i := range pieces {
		rates = append(rates, simulator.Rate{Seconds: piece, PerSecond: 1 + float64(i)})
	}
	if quick {
		rates = rates[:30]
	}
	requests := simulator.Generate(rates, 2000, 600, 4)
	most := map[string]float64{}
	hours := map[string]float64{}
	for name, p := range map[string]policy.Policy{"4 ranks": policy.Static{}, "8 ranks": policy.Static{}, "policy": b.policy(widthSLO.Share)} {
		c := b.ours
		if name == "8 ranks" {
			c.Start = widthMost - widthLeast
		}
		r, err := simulator.Run(c, requests, p, nil)
		if err != nil {
			return nil, err
		}
		for i, rate := range rates {
			if shareOf(r, float64(i)*piece, float64(i+1)*piece) < widthSLO.Share {
				break
			}
			most[name] = rate.PerSecond
		}
		hours[name] = r.RankSeconds / 3600
	}
	most["hours"] = hours["policy"] / hours["8 ranks"]
	return most, printLine(out, map[string]any{"bench": "slo-dynamics", "growing": most, "rank_hours": hours})
}
