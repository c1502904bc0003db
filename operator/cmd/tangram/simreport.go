package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"tangram.dev/operator/internal/plancli"
	"tangram.dev/operator/internal/simcli"
	"tangram.dev/operator/pkg/simulator"
)

// simulated is the result of one policy. Times are in seconds.
type simulated struct {
	Policy       string        `json:"policy"`
	Requests     int           `json:"requests"`
	Within       int           `json:"within"` // requests within the SLO
	LatencySum   float64       `json:"latencySum"`
	Makespan     float64       `json:"makespan"`
	Overload     float64       `json:"overload"` // last arrival to last answer's end, if overloaded; else 0
	FirstToken   simcli.Spread `json:"firstToken"`
	PerToken     simcli.Spread `json:"perToken"`
	OutputTokens uint64        `json:"outputTokens"`
	ReusedTokens uint64        `json:"reusedTokens"`
	LostCached   int           `json:"lostCached"`
	Steps        uint64        `json:"steps"`
	Stalled      float64       `json:"stalled"`
	Switches     []switched    `json:"switches"`
	Held         int           `json:"held"`
	Refused      int           `json:"refused"`
	Occupancy    float64       `json:"occupancy"` // mean number of requests in flight
	RankSeconds  float64       `json:"rankSeconds"`
	Samples      []sample      `json:"samples,omitempty"`
}

// switched is a switch of the mode, with its time and reason.
type switched struct {
	At      float64            `json:"at"`
	From    string             `json:"from"`
	To      string             `json:"to"`
	Why     string             `json:"why"`
	Figures map[string]float64 `json:"figures,omitempty"`
}

// sample is a simulator.Sample.
type sample struct {
	At           float64 `json:"at"`
	Mode         string  `json:"mode"`
	Running      int     `json:"running"`
	Waiting      int     `json:"waiting"`
	QueuedTokens int     `json:"queuedTokens"`
	KV           int     `json:"kv"`
	StepSeconds  float64 `json:"stepSeconds"`
	Arrived      uint64  `json:"arrived"`
	Finished     uint64  `json:"finished"`
}

func report(policy string, r *simulator.Result, overload float64, samples bool) simulated {
	out := simulated{Policy: policy, Requests: r.Requests, Within: r.Within, LatencySum: r.LatencySum, Makespan: r.Makespan, Overload: overload, FirstToken: simcli.Spread(r.FirstToken),
		PerToken: simcli.Spread(r.PerToken), OutputTokens: r.OutputTokens, ReusedTokens: r.ReusedTokens, LostCached: r.LostCached, Steps: r.Steps, Stalled: r.Stalled, Held: r.Held,
		Refused: r.Refused, Occupancy: r.Occupancy, RankSeconds: r.RankSeconds, Switches: make([]switched, 0, len(r.Switches))}
	for _, s := range r.Switches {
		out.Switches = append(out.Switches, switched{s.At, s.From, s.To, s.Why.Text, s.Why.Figures})
	}
	if samples {
		for _, s := range r.Samples {
			out.Samples = append(out.Samples, sample(s))
		}
	}
	return out
}

// simulations has the results of several policies. SLO: an SLO was given.
type simulations struct {
	Policies []simulated `json:"policies"`
	SLO      bool        `json:"-"`
}

// Table prints a row per policy, then the events of its world.
func (s *simulations) Table(w *tabwriter.Writer, _ int) {
	head := []string{"policy", "requests", "latency mean s", "TTFT p50 s", "TTFT p99 s", "TPOT p50 ms", "TPOT p99 ms", "tokens/s", "in flight", "makespan s", "switches", "stalled s"}
	if s.SLO {
		head = append(head, "attained", "rank-hours")
	}
	_, _ = fmt.Fprintln(w, strings.Join(append(head, ""), "\t"))
	for _, r := range s.Policies {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%.3f\t%.3f\t%.3f\t%.2f\t%.2f\t%.0f\t%.1f\t%.1f\t%d\t%.2f\t", r.Policy, plancli.Count(r.Requests), r.LatencySum/float64(max(r.Requests, 1)),
			r.FirstToken.P50, r.FirstToken.P99, 1e3*r.PerToken.P50, 1e3*r.PerToken.P99, float64(r.OutputTokens)/r.Makespan, r.Occupancy, r.Makespan, len(r.Switches), r.Stalled)
		if s.SLO {
			_, _ = fmt.Fprintf(w, "%.4f\t%.2f\t", float64(r.Within)/float64(max(r.Requests, 1)), r.RankSeconds/3600)
		}
		_, _ = fmt.Fprintln(w)
	}
	_ = w.Flush() // the lines below are no columns
	for _, r := range s.Policies {
		if r.Overload > 0 {
			_, _ = fmt.Fprintf(w, "%s: overloaded: the last request completes %s s after the last arrival, so these ranks cannot serve requests at their arrival rate\n", r.Policy,
				plancli.Count(int(r.Overload)))
		}
		for _, c := range r.Switches {
			_, _ = fmt.Fprintf(w, "%s at %.1f s: %s -> %s: %s\n", r.Policy, c.At, c.From, c.To, c.Why)
		}
	}
}
