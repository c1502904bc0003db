package main

import (
	"fmt"
	"io"
	"slices"
	"time"

	"tangram.dev/e2e/load"
)

// seen is the clients' view of a period, as in the report.
type seen struct {
	Before float64 `json:"tokens_per_second_before"` // over the length of the pause before the period
	During float64 `json:"tokens_per_second_during"`
	After  float64 `json:"tokens_per_second_after"` // the same, after it
	// GapBefore and GapAfter are the medians of the times between two tokens of a request, in seconds, in the same
	// spans: the duration of a step in each layout.
	GapBefore float64 `json:"gap_seconds_before"`
	GapAfter  float64 `json:"gap_seconds_after"`
	// FirstToken is the longest time to a first token among requests that waited in the period, seconds.
	FirstToken float64 `json:"first_token_seconds"`
	// Gaps is the plain sum of all gaps between two tokens of the world that are longer than two steps, while a request
	// had not ended. Nothing is subtracted, and requests that wait for their first token count.
	Gaps float64 `json:"gaps_seconds"`
}

// measure computes the view of from..to; times are of all tokens, ascending.
func (s *seen) measure(results []*load.Result, times []time.Time, from, to time.Time, step float64, around time.Duration) {
	*s = seen{Before: rate(times, from.Add(-around), from), During: rate(times, from, to), After: rate(times, to, to.Add(around)),
		GapBefore: medianGap(results, from.Add(-around), from), GapAfter: medianGap(results, to, to.Add(around))}
	for _, r := range results {
		if len(r.Tokens) > 0 && r.Sent.Before(to) && r.Tokens[0].At.After(from) {
			s.FirstToken = max(s.FirstToken, r.Tokens[0].At.Sub(r.Sent).Seconds())
		}
	}
	for i := 1; i < len(times); i++ {
		a, b := times[i-1], times[i]
		if gap := b.Sub(a).Seconds(); gap > 2*step && b.After(from) && a.Before(to) && slices.ContainsFunc(results, func(r *load.Result) bool { return pending(r, a, b) }) {
			s.Gaps += gap
		}
	}
}

// pending reports whether the request was sent by a, and had not ended before b.
func pending(r *load.Result, a, b time.Time) bool {
	if r.Sent.After(a) {
		return false
	}
	return r.Err != nil || len(r.Tokens) > 0 && !r.Tokens[len(r.Tokens)-1].At.Before(b)
}

// rate returns the tokens per second in [from, to).
func rate(times []time.Time, from, to time.Time) float64 {
	if !to.After(from) {
		return 0
	}
	n := 0
	for _, t := range times {
		if !t.Before(from) && t.Before(to) {
			n++
		}
	}
	return float64(n) / to.Sub(from).Seconds()
}

// firstTokens returns the median, 99th percentile and maximum of the times to the first token, seconds.
func firstTokens(results []*load.Result) (middle, p99, worst float64) {
	var waits []float64
	for _, r := range results {
		if len(r.Tokens) > 0 {
			waits = append(waits, r.Tokens[0].At.Sub(r.Sent).Seconds())
		}
	}
	if len(waits) == 0 {
		return 0, 0, 0
	}
	return median(waits), quantileOf(waits, .99), slices.Max(waits)
}

// printSeen prints the table of the clients' view.
func (r *report) printSeen(out io.Writer) {
	w := tables(out)
	_, _ = fmt.Fprintln(w, "\nclients\ttokens/s before\tduring\tafter\tmedian inter-token latency before, after ms\tlongest inter-token latency ms\tstall ms\tstall / (copy + 2 steps)\tall gaps ms\tlongest time to first token ms\t")
	row := func(name string, s *seen, rest string) {
		_, _ = fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.0f\t%s, %s\t%s\t%s\t%s\t\n", name, s.Before, s.During, s.After, milliseconds(s.GapBefore), milliseconds(s.GapAfter), rest, milliseconds(s.Gaps), milliseconds(s.FirstToken))
	}
	for _, t := range r.Transitions {
		row(t.Name, &t.Seen, fmt.Sprintf("%s\t%s\t%.1f", milliseconds(t.LongestGap), milliseconds(t.Silent), t.Ratio))
	}
	if r.Heat != nil {
		row(heatName, &r.Heat.Seen, "\t\t")
	}
	for _, a := range r.Acts {
		row(a.Name, &a.Seen, milliseconds(a.WorstGap)+"\t\t")
	}
	_ = w.Flush()
}

// refusals counts rejected requests by status, before the first kill and after it.
type refusals struct {
	Quiet429 int `json:"quiet_429"`
	Quiet503 int `json:"quiet_503"`
	Acts429  int `json:"acts_429"`
	Acts503  int `json:"acts_503"`
}

func (r *report) countRefusals(results []*load.Result) {
	r.Refusals = refusals{}
	for _, result := range results {
		for _, refused := range result.Refused {
			dying := slices.ContainsFunc(r.Acts, func(a *act) bool { return refused.At.After(a.at) && refused.At.Before(a.whole) })
			switch {
			case refused.Status == 429 && dying:
				r.Refusals.Acts429++
			case refused.Status == 429:
				r.Refusals.Quiet429++
			case dying:
				r.Refusals.Acts503++
			default:
				r.Refusals.Quiet503++
			}
		}
	}
}

// judgeGateway checks that requests are rejected or retried only after a process was killed.
func (r *report) judgeGateway() {
	broken := func(n float64, what string) {
		if n > 0 {
			r.Broken = append(r.Broken, fmt.Sprintf("%.0f %s", n, what))
		}
	}
	broken(float64(r.Refusals.Quiet429), "requests got HTTP 429 while no process was killed")
	broken(float64(r.Refusals.Quiet503), "requests got HTTP 503 while no process was killed")
	broken(r.GatewayBefore.Replays-r.GatewayBefore.Orphaned, "requests were retried in transitions in which no process was killed")
	broken(r.Gateway.Conflicts, "tokens mismatched: they differ from the token already delivered for their position")
	broken(r.Gateway.Lost, "accepted requests ended without their last token, as the gateways count")
}

// judgeBytes checks the agents' counts against the plan, and the plan of a resize against the bound.
func (r *report) judgeBytes(t *transition) {
	record := t.Record
	if got, bound := record.ExpertBytes, record.ExpertBoundBytes; t.Resize && got != bound {
		r.Broken = append(r.Broken, fmt.Sprintf("%s moved %d expert bytes, the bound is %d", t.Name, got, bound))
	}
	// The plan counts a joiner's non-expert weights with the gaps between tensors, which are not copied.
	got, least := t.moved(), record.ExpertBytes
	if record.DenseBytes > 0 {
		least++
	}
	if got < least || got > record.ExpertBytes+record.DenseBytes {
		r.Broken = append(r.Broken, fmt.Sprintf("%s: the agents received %d bytes, %d of experts and %d of other weights were planned", t.Name, got,
			record.ExpertBytes, record.DenseBytes))
	}
	if again := record.Bytes.Checkpoint; again != 0 {
		r.Broken = append(r.Broken, fmt.Sprintf("%s: %d bytes were read from the checkpoint, and ranks hold all of them", t.Name, again))
	}
}

// moved is the number of bytes from other ranks or the checkpoint, as counted by the agents, without KV.
func (t *transition) moved() uint64 {
	b := t.Record.Bytes
	return b.TCP + b.Wire + b.Shared + b.Checkpoint
}
