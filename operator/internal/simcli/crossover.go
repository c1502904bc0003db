package simcli

import (
	"fmt"

	"tangram.dev/operator/pkg/kernels"
)

// MostCrossing is the largest number of requests to consider: attention was measured up to it.
const MostCrossing = 512

// Crossover is the crossover of a world's modes on one engine's kernels.
type Crossover struct {
	Engine  string `json:"engine"`
	Routing string `json:"routing"`
	Context int    `json:"context"` // tokens per request
	kernels.Crossing
	Points []CrossPoint `json:"points"`
}

// CrossPoint is a step with this number of requests in both modes, in seconds.
type CrossPoint struct {
	Requests int           `json:"requests"`
	Expert   kernels.Parts `json:"expert"`
	Tensor   kernels.Parts `json:"tensor"`
}

// Crossovers computes one for each engine, routing and context, with points at powers of two of requests.
func Crossovers(model string, ranks int, engines, routings []string, contexts []int) ([]Crossover, error) {
	if ranks < 2 {
		return nil, fmt.Errorf("--ranks is %d; want at least 2, because both modes are the same on one rank", ranks)
	}
	if err := CheckRanks("--ranks", ranks); err != nil {
		return nil, err
	}
	v, table, err := Tables(model, ranks)
	if err != nil {
		return nil, err
	}
	for _, engine := range engines {
		for _, routing := range routings {
			if err := CheckKernels(table, "--truth", engine, routing); err != nil {
				return nil, err
			}
		}
	}
	var out []Crossover
	for _, routing := range routings {
		for _, context := range contexts {
			if context < 1 || context > 1<<20 {
				return nil, fmt.Errorf("--context is %d; want 1 to %d tokens", context, 1<<20)
			}
			for _, engine := range engines {
				expert, err := kernels.At(table, v, engine, routing, kernels.Expert(ranks))
				if err != nil {
					return nil, err
				}
				tensor, err := kernels.At(table, v, engine, routing, kernels.Tensor(ranks))
				if err != nil {
					return nil, err
				}
				c := Crossover{Engine: engine, Routing: routing, Context: context, Crossing: kernels.Cross(tensor, expert, context, MostCrossing)}
				for n := 1; n <= MostCrossing; n *= 2 {
					c.Points = append(c.Points, CrossPoint{n, expert.Decode(n, context), tensor.Decode(n, context)})
				}
				out = append(out, c)
			}
		}
	}
	return out, nil
}

// Words describes the crossover.
func (c Crossover) Words() string {
	switch {
	case c.Below >= MostCrossing:
		return fmt.Sprintf("TensorParallel mode is faster for all numbers of requests up to %d", MostCrossing)
	case c.Above == 0:
		return fmt.Sprintf("TensorParallel mode is faster up to %d requests, and again at %d", c.Below, MostCrossing)
	case c.Above == c.Below+1 && c.Below == 0:
		return "ExpertParallel mode is faster for all numbers of requests"
	case c.Above == c.Below+1:
		return fmt.Sprintf("TensorParallel mode is faster up to %d requests, ExpertParallel mode above", c.Below)
	case c.Below == 0:
		return fmt.Sprintf("ExpertParallel mode is faster from %d requests; below, the faster mode varies", c.Above)
	}
	return fmt.Sprintf("TensorParallel mode is faster up to %d requests, ExpertParallel mode from %d; in between, the faster mode varies", c.Below, c.Above)
}
