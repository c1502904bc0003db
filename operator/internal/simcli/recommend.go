package simcli

import (
	"fmt"
	"io"
	"math"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/policy"
	"tangram.dev/operator/pkg/simulator"
	"tangram.dev/operator/pkg/telemetry"
)

// Offer is a world of constant shape: the latencies of its clients and its cost.
type Offer struct {
	Mode       string  `json:"mode"`
	Ranks      int     `json:"ranks"`
	Redundant  int     `json:"redundant"`           // slots per layer beyond one for each expert
	Imbalance  float64 `json:"imbalance,omitempty"` // busiest rank's expert load over the mean; 0: the kernels' routing
	Refused    string  `json:"refused,omitempty"`   // why it cannot serve these requests
	Attained   float64 `json:"attained"`            // share of the requests within the SLO
	RankHours  float64 `json:"rankHours"`           // until the last answer
	FirstToken Spread  `json:"firstToken"`
	PerToken   Spread  `json:"perToken"`
}

// Spread is a simulator.Spread, in seconds, for reports.
type Spread struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

// alike: rank-hours that differ by less count as equal; then fewer redundant experts, or more requests within the SLO,
// win.
const alike = .01

// Recommend simulates both modes at each number of ranks up to o.Ranks. ExpertParallel is simulated with each number of
// redundant experts in o.Experts. It returns all offers in this order and the index of the best: the cheapest in
// rank-hours that keeps the SLO, or -1. It calls progress before each.
func Recommend(o Options, slo telemetry.SLO, stdin io.Reader, progress func(mode string, ranks, redundant int)) (offers []Offer, best int, err error) {
	if err := slo.Check(); err != nil {
		return nil, -1, err
	}
	if err := o.check(); err != nil {
		return nil, -1, err
	}
	if o.Trace == "-" && o.Experts.File == "-" {
		return nil, -1, fmt.Errorf("--trace -, --expert-load -: only one flag can read standard input: write the other input to a file")
	}
	requests, err := o.requests(stdin)
	if err != nil {
		return nil, -1, err
	}
	if len(requests) == 0 {
		return nil, -1, errNoRequests
	}
	v, table, err := Tables(o.Model, o.Ranks)
	if err != nil {
		return nil, -1, err
	}
	experts := int(v.Proto.Experts)
	windows, err := o.Experts.windows(v.MoELayers(), experts, o.Seed, stdin)
	if err != nil {
		return nil, -1, err
	}
	if windows != nil && o.Routing != "balanced" {
		return nil, -1, fmt.Errorf("--routing %s cannot be used with --expert-load or --expert-skew, because the skew would count twice: use --routing balanced", o.Routing)
	}
	requests = simulator.Times(requests, o.Times, o.Seed)
	for ranks := 1; ranks <= o.Ranks; ranks++ {
		for _, mode := range []string{"ExpertParallel", "TensorParallel"} {
			shape := kernels.Expert(ranks)
			if mode == "TensorParallel" {
				if ranks == 1 {
					continue // one rank has one mode
				}
				shape = kernels.Tensor(ranks)
			}
			if _, err := kernels.At(table, v, o.Truth, o.Routing, shape); err != nil {
				return nil, -1, fmt.Errorf("--ranks, --truth, --routing: %w", err)
			}
			all := []int{0}
			if windows != nil && mode == "ExpertParallel" {
				all = o.Experts.slots(experts, ranks)
			}
			for _, slots := range all {
				offer := Offer{Mode: mode, Ranks: ranks}
				if slots > 0 {
					if offer.Imbalance, err = imbalance(windows, ranks, slots); err != nil {
						return nil, -1, fmt.Errorf("%d slots on %d ranks: %w", slots, ranks, err)
					}
					offer.Redundant = slots*ranks - experts
				}
				progress(mode, ranks, offer.Redundant)
				if err := o.offer(&offer, v, table, shape, slo, requests); err != nil {
					offer.Refused = err.Error()
				}
				offers = append(offers, offer)
				if offer.Refused != "" {
					break // more replicas leave less memory
				}
			}
		}
	}
	return offers, bestOf(offers, slo.Share), nil
}

// bestOf returns the index of the best offer. Of the offers that keep the SLO at about the least rank-hours, it prefers
// the fewest redundant experts, then the most requests within the SLO.
func bestOf(offers []Offer, share float64) int {
	keeps := func(f Offer) bool { return f.Refused == "" && f.Attained >= share }
	least, best := math.Inf(1), -1
	for _, f := range offers {
		if keeps(f) {
			least = min(least, f.RankHours)
		}
	}
	for i, f := range offers {
		if !keeps(f) || f.RankHours > least*(1+alike) {
			continue
		}
		if best < 0 || f.Redundant < offers[best].Redundant || f.Redundant == offers[best].Redundant && f.Attained > offers[best].Attained {
			best = i
		}
	}
	return best
}

func (o Options) offer(to *Offer, v *geometry.View, table *kernels.Table, shape kernels.Shape, slo telemetry.SLO, requests []simulator.Request) error {
	h := o.hardware()
	h.Memory.Redundant = to.Redundant
	c, err := simulator.Build(v, table, o.Truth, o.Routing, h, shape)
	if err != nil {
		return err
	}
	c.Modes[0].Imbalance = to.Imbalance
	c.Noise, c.Seed, c.Concurrency, c.TTFT, c.TPOT = o.Noise, o.Seed, o.Concurrency, slo.TTFT, slo.TPOT
	r, err := simulator.Run(c, requests, policy.Static{}, nil)
	if err != nil {
		return err
	}
	to.Attained, to.RankHours = float64(r.Within)/float64(r.Requests), float64(to.Ranks)*r.Makespan/3600
	to.FirstToken, to.PerToken = Spread(r.FirstToken), Spread(r.PerToken)
	return nil
}
