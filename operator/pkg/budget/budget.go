// Package budget chooses the number of redundant experts per layer. Pure.
//
// Model, per rank and step: the MoE part waits for the busiest rank, so it takes its time at even load divided by the
// balancedness. Demand beyond a rank's KV blocks waits or is recomputed, which costs a measured share of the throughput
// per missing block. So
//
//	step(R) = Other + MoE / balance(R)
//	short(R) = max(0, demand - (blocks - taken(R)))
//	throughput(R) ~ (1 - LossPerBlock * short(R)) / step(R)
//
// The best R has the highest throughput. Of equals, the smallest wins, because experts must be moved and memory has
// other uses. The model ignores that replicas also save some all-to-all traffic.
package budget

import (
	"fmt"
	"math"
	"strings"
	"text/tabwriter"
)

// Point of a measured curve: the balancedness (mean over max rank load, all layers) of a placement with this number of
// redundant experts per layer on the forecast.
type Point struct {
	Redundant int
	Balance   float64 // above 0, at most 1
}

// Input of Choose, measured in the deployment.
type Input struct {
	Curve                    []Point // candidates, ascending; the first is 0 redundant experts
	Ranks, Layers            int     // layers with experts; redundant experts spread over the ranks
	ExpertBytes, BlockBytes  int64   // one expert of one layer; one KV block of a rank, all its layers
	KVBlocks                 int     // of a rank that holds no redundant expert
	KVDemand                 int     // blocks that the running and waiting requests of a rank currently need
	LossPerBlock             float64 // share of throughput lost per missing block, at the current pressure
	MoESeconds, OtherSeconds float64 // of a step: the MoE part at even load, and the rest
}

// Row of the table: the effect of a number of redundant experts.
type Row struct {
	Redundant   int     `json:"redundant"`
	Balance     float64 `json:"balance"`
	KVBlocks    int     `json:"kvBlocks"` // left to the rank with the most redundant experts
	KVShort     int     `json:"kvShort"`  // blocks needed but missing
	StepSeconds float64 `json:"stepSeconds"`
	Throughput  float64 `json:"throughput"` // relative to no redundant experts; 0: cannot run
}

// Choice is the result and its rationale.
type Choice struct {
	Best int    `json:"best"` // redundant experts per layer
	Rows []Row  `json:"rows"`
	Why  string `json:"why"` // one sentence with the figures
}

// Choose selects the number of redundant experts among the points of the curve.
func Choose(in Input) (*Choice, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	out := &Choice{}
	base, best := in.row(in.Curve[0], 1), 0
	if base.Throughput == 0 {
		return nil, fmt.Errorf("budget: without redundant experts %d of %d needed KV blocks are missing, and at a loss of %v each no throughput remains: use more ranks, or measure the loss per block under this load",
			base.KVShort, in.KVDemand, in.LossPerBlock)
	}
	for i, p := range in.Curve {
		row := in.row(p, base.Throughput)
		out.Rows = append(out.Rows, row)
		if row.Throughput > out.Rows[best].Throughput {
			best = i
		}
	}
	out.Best = out.Rows[best].Redundant
	out.Why = why(out.Rows, best)
	return out, nil
}

func (in *Input) row(p Point, base float64) Row {
	// The rank with the most redundant experts runs out of blocks first.
	onOne := (p.Redundant + in.Ranks - 1) / in.Ranks
	taken := math.Ceil(float64(onOne) * float64(in.Layers) * float64(in.ExpertBytes) / float64(in.BlockBytes))
	r := Row{Redundant: p.Redundant, Balance: p.Balance, StepSeconds: in.OtherSeconds + in.MoESeconds/p.Balance}
	if taken >= float64(in.KVBlocks) {
		r.KVShort = in.KVDemand // no block left: no request can run
		return r
	}
	r.KVBlocks = in.KVBlocks - int(taken)
	r.KVShort = max(0, in.KVDemand-r.KVBlocks)
	r.Throughput = max(0, 1-in.LossPerBlock*float64(r.KVShort)) / r.StepSeconds / base
	return r
}

func why(rows []Row, best int) string {
	b := rows[best]
	text := fmt.Sprintf("best: %d redundant experts per layer: balancedness %.3f (%.3f without), %.2f ms per step (%.2f without), %d of %d KV blocks left, %d missing, throughput %+.1f %%",
		b.Redundant, b.Balance, rows[0].Balance, 1e3*b.StepSeconds, 1e3*rows[0].StepSeconds, b.KVBlocks, rows[0].KVBlocks, b.KVShort, 100*(b.Throughput-1))
	if best+1 < len(rows) {
		n := rows[best+1]
		switch {
		case n.KVBlocks == 0:
			text += fmt.Sprintf("; %d would leave no KV blocks", n.Redundant)
		case n.KVShort > b.KVShort:
			text += fmt.Sprintf("; with %d, %d KV blocks would be missing, at %.2f ms per step", n.Redundant, n.KVShort, 1e3*n.StepSeconds)
		default:
			text += fmt.Sprintf("; %d would not improve it (balancedness %.3f)", n.Redundant, n.Balance)
		}
	}
	return text
}

func (in *Input) check() error {
	if len(in.Curve) == 0 || in.Curve[0].Redundant != 0 {
		return fmt.Errorf("budget: the curve has %d points; want a first point with 0 redundant experts", len(in.Curve))
	}
	for i, p := range in.Curve {
		if !(p.Balance > 0 && p.Balance <= 1) {
			return fmt.Errorf("budget: point %d (%d redundant experts): balance %v; want above 0 and at most 1", i, p.Redundant, p.Balance)
		}
		if i > 0 && p.Redundant <= in.Curve[i-1].Redundant {
			return fmt.Errorf("budget: point %d: %d redundant experts after %d; want them ascending", i, p.Redundant, in.Curve[i-1].Redundant)
		}
	}
	for _, v := range []struct {
		name  string
		value float64
		least float64
	}{
		{"ranks", float64(in.Ranks), 1}, {"layers", float64(in.Layers), 1}, {"expert bytes", float64(in.ExpertBytes), 1},
		{"block bytes", float64(in.BlockBytes), 1}, {"KV blocks", float64(in.KVBlocks), 1}, {"KV demand", float64(in.KVDemand), 0},
		{"loss per block", in.LossPerBlock, 0}, {"MoE seconds", in.MoESeconds, 0}, {"other seconds", in.OtherSeconds, 0},
	} {
		if !(v.value >= v.least) || math.IsInf(v.value, 0) {
			return fmt.Errorf("budget: %s is %v; want a finite number of at least %v", v.name, v.value, v.least)
		}
	}
	if in.MoESeconds+in.OtherSeconds == 0 {
		return fmt.Errorf("budget: the step duration is 0 seconds; want MoE seconds or other seconds above 0")
	}
	return nil
}

// String formats the table and the reason for a terminal.
func (c *Choice) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	lines := []string{"redundant\tbalancedness\tKV blocks\tmissing\tstep ms\tthroughput\t\n"}
	for _, r := range c.Rows {
		mark := ""
		if r.Redundant == c.Best {
			mark = "  <"
		}
		lines = append(lines, fmt.Sprintf("%d\t%.3f\t%d\t%d\t%.3f\t%.3f\t%s\n", r.Redundant, r.Balance, r.KVBlocks, r.KVShort, 1e3*r.StepSeconds, r.Throughput, mark))
	}
	for _, line := range lines {
		_, _ = w.Write([]byte(line)) // a strings.Builder does not fail
	}
	_ = w.Flush()
	return b.String() + c.Why + "\n"
}
