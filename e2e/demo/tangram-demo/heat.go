package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"tangram.dev/e2e/harness/cluster"
	"tangram.dev/e2e/kube"
	"tangram.dev/e2e/load"
)

const (
	heatName = "rebalance of hot experts"
	// heatUp is the time in which earlier requests continue; no measured window overlaps it.
	heatUp = 4 * time.Second
	// heatSteps is the minimum number of steps between two checks of the operator: fewer tokens do not show which
	// experts are hot.
	heatSteps = 45
)

// heat is the act in which prompts need the same few experts, as in the report. Balancedness is mean over maximum load
// of a rank, over all layers.
type heat struct {
	Without  float64 `json:"balancedness_without"` // of the first window after the rebalance, without it
	Promised float64 `json:"balancedness_promised"`
	Measured float64 `json:"balancedness_measured"`
	Moves    int     `json:"moved_experts"`
	Bytes    int64   `json:"bytes"`
	Why      string  `json:"why"`
	Seen     seen    `json:"seen"`

	from, to time.Time
}

// expertsGetHot waits until the operator has moved experts and measured the gain.
func expertsGetHot(ctx context.Context, o options, k *kube.Client, trace *load.Trace, begin func(string)) (*heat, error) {
	begin(heatName)
	h := &heat{from: time.Now()}
	trace.Heat(true)
	defer trace.Heat(false)
	if err := sleep(ctx, heatUp); err != nil {
		return nil, err
	}
	last, why, err := cluster.Rebalance(ctx, k, world, max(cluster.RebalanceInterval, heatSteps*o.leastStep))
	if err != nil {
		return nil, err
	}
	h.Why = why
	h.Moves, h.Bytes = int(last.Moves), last.Bytes
	h.Without, h.Promised, h.Measured = float64(*last.CounterfactualPermille)/1000, float64(last.PromisedPermille)/1000, float64(*last.MeasuredPermille)/1000
	h.to = time.Now()
	say("%s: balancedness %.3f (%.3f without the rebalance), %d experts (%s MB) moved", heatName, h.Measured, h.Without, h.Moves, mb(h.Bytes))
	return h, nil
}

func (r *report) printHeat(out io.Writer) {
	h := r.Heat
	if h == nil {
		return
	}
	w := tables(out)
	_, _ = fmt.Fprintln(w, "\nbalancedness (mean / max load of a rank)\twithout rebalance\tpredicted\tmeasured\texperts moved\tmoved MB\tuntil measured s\t")
	_, _ = fmt.Fprintf(w, "%s\t%.3f\t%.3f\t%.3f\t%d\t%s\t%.1f\t\n", heatName, h.Without, h.Promised, h.Measured, h.Moves, mb(h.Bytes), h.to.Sub(h.from).Seconds())
	_ = w.Flush()
	_, _ = fmt.Fprintf(out, "reason: %s\n", h.Why)
}
