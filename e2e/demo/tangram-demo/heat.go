package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"tangram.dev/api/v1alpha1"
	"tangram.dev/e2e/kube"
	"tangram.dev/e2e/load"
)

const (
	heatName = "hot experts, rebalanced"
	// heatSpec asks for copies of hot experts, two on each of four ranks, and for a look every three seconds.
	heatSpec = `{"spec":{"redundantExperts":8,"rebalance":{"intervalSeconds":3}}}`
	// heatUp: so long the requests from before go on, of which no window shall tell.
	heatUp = 4 * time.Second
	// coolSpec leaves experts where they are: who dies next dies with copies around.
	coolSpec = `{"spec":{"redundantExperts":0,"rebalance":null}}`
)

// heat is the act in which prompts ask for the same few experts, as the report has it. Balancedness is mean over
// largest load of a rank, over all layers.
type heat struct {
	Without  float64 `json:"balancedness_without"` // of the first window after the rebalance, had there been none
	Promised float64 `json:"balancedness_promised"`
	Measured float64 `json:"balancedness_measured"`
	Moves    int     `json:"moved_experts"`
	Bytes    int64   `json:"bytes"`
	Why      string  `json:"why"`
	Seen     seen    `json:"seen"`

	from, to time.Time
}

// expertsGetHot until the operator has moved experts and measured what that brought.
func expertsGetHot(ctx context.Context, k *kube.Client, trace *load.Trace, begin func(string)) (*heat, error) {
	begin(heatName)
	h := &heat{from: time.Now()}
	trace.Heat(true)
	defer trace.Heat(false)
	if err := sleep(ctx, heatUp); err != nil {
		return nil, err
	}
	if err := k.Patch(ctx, object, heatSpec); err != nil {
		return nil, err
	}
	var last *v1alpha1.RebalanceDone
	for last == nil || last.Measured == nil {
		d, err := k.MoEDeployment(ctx, world)
		if err != nil {
			return nil, err
		}
		if r := d.Status.Rebalance; r != nil {
			last = r.Last
			if last == nil || h.Why == "" {
				h.Why = r.Why
			}
		}
		if err := sleep(ctx, look); err != nil {
			return nil, fmt.Errorf("no rebalance was done and measured; the last decision: %s: %w", h.Why, err)
		}
	}
	h.Moves, h.Bytes = int(last.Moves), last.Bytes
	h.Without, h.Promised, h.Measured = last.Without.AsApproximateFloat64(), last.Promised.AsApproximateFloat64(), last.Measured.AsApproximateFloat64()
	h.to = time.Now()
	say("%-32s balancedness %.3f, %.3f without", heatName, h.Measured, h.Without)
	return h, k.Patch(ctx, object, coolSpec)
}

func (r *report) printHeat(out io.Writer) {
	h := r.Heat
	if h == nil {
		return
	}
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(w, "\nbalancedness of the load\twithout\tpromised\tmeasured\texperts moved\tbytes\tas wanted s\t")
	_, _ = fmt.Fprintf(w, "%s\t%.3f\t%.3f\t%.3f\t%d\t%d\t%.1f\t\n", heatName, h.Without, h.Promised, h.Measured, h.Moves, h.Bytes, h.to.Sub(h.from).Seconds())
	_ = w.Flush()
	_, _ = fmt.Fprintf(out, "why: %s\n", h.Why)
}
