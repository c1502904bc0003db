package main

import (
	"fmt"
	"io"
	"slices"
	"time"

	"tangram.dev/e2e/load"
)

const (
	rankActName     = "kill -9 of a rank"
	operatorActName = "kill of the operator during a switch"
)

// act is an event of the demo in which a process is killed, as in the report.
type act struct {
	Name string `json:"name"`
	// Seconds after the death: until the layout was repaired (0: no repair was needed), and until the world matched its
	// spec again.
	Repaired float64 `json:"repaired_seconds"`
	Whole    float64 `json:"whole_seconds"`
	// ReadAgain is the number of bytes that the repair read from the checkpoint.
	ReadAgain uint64 `json:"read_again_bytes"`
	// Requests counts the requests that were running at the kill; the gaps are the median and the longest of their
	// longest times without a token, in seconds.
	Requests  int     `json:"requests"`
	MedianGap float64 `json:"median_gap_seconds"`
	WorstGap  float64 `json:"worst_gap_seconds"`
	Seen      seen    `json:"seen"`

	at, whole time.Time
}

func (a *act) ended(repaired time.Time) {
	a.whole = time.Now()
	a.Whole = a.whole.Sub(a.at).Seconds()
	if !repaired.IsZero() {
		a.Repaired = repaired.Sub(a.at).Seconds()
	}
}

// outcome describes the act in one line.
func (a *act) outcome() string {
	if a.Repaired > 0 {
		return fmt.Sprintf("%s: serving again after %.1f s, all ranks Ready after %.1f s", a.Name, a.Repaired, a.Whole)
	}
	return fmt.Sprintf("%s: the next operator completed it, Ready after %.1f s", a.Name, a.Whole)
}

// streamsAt returns the requests that had received their first token at a time, but not their last one.
func streamsAt(results []*load.Result, at time.Time) (out []*load.Result) {
	for _, r := range results {
		if n := len(r.Tokens); n > 0 && r.Tokens[0].At.Before(at) && r.Tokens[n-1].At.After(at) {
			out = append(out, r)
		}
	}
	return out
}

// measure records the longest pause of each request that was running at the kill.
func (a *act) measure(results []*load.Result) {
	var gaps []float64
	for _, r := range streamsAt(results, a.at) {
		longest := 0.0
		for i := 1; i < len(r.Tokens); i++ {
			if from, to := r.Tokens[i-1].At, r.Tokens[i].At; to.After(a.at) && from.Before(a.whole) {
				longest = max(longest, to.Sub(from).Seconds())
			}
		}
		gaps = append(gaps, longest)
	}
	a.Requests = len(gaps)
	if len(gaps) > 0 {
		a.MedianGap, a.WorstGap = median(gaps), slices.Max(gaps)
	}
}

func (r *report) printActs(out io.Writer) {
	if len(r.Acts) == 0 {
		return
	}
	w := tables(out)
	_, _ = fmt.Fprintln(w, "\nfailure\trunning requests\tstall per request p50 s\tlongest s\trecovery time s\ttime to Ready s\treloaded from checkpoint MB\t")
	for _, a := range r.Acts {
		_, _ = fmt.Fprintf(w, "%s\t%d\t%.2f\t%.2f\t%.2f\t%.2f\t%s\t\n", a.Name, a.Requests, a.MedianGap, a.WorstGap, a.Repaired, a.Whole, mb(a.ReadAgain))
	}
	_ = w.Flush()
}
