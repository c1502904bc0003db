package bench

import (
	"fmt"
	"math"

	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/simulator"
)

// Scalers of replicas, re-implemented from their documentation: their inputs and decisions. Both get the data that they
// would have to measure first exactly: the profile is the simulator's truth. All replicas compute prompts and decode,
// so there is one pool.

// throughputScaler is Dynamo's planner in throughput mode (docs.nvidia.com/dynamo, design-docs/planner-design). Each
// interval it forecasts requests and lengths. From the profile it takes a replica's throughput within the SLO,
// corrected by measured over profiled TTFT and ITL, and divides.
type throughputScaler struct {
	truth    *kernels.Step
	chunk    int
	ttft     float64 // targets
	tpot     float64
	interval float64
	trend    bool    // from the last two intervals (ARIMA and Kalman need more than an hour), not one (constant)
	part     float64 // share of the profile's throughput to plan with

	last   float64
	seen   bool
	prompt float64
	output float64
}

func (d *throughputScaler) Every() float64 { return d.interval }

// step returns the profiled duration of a step that decodes `decode` requests and computes `prefill` prompt tokens.
func (d *throughputScaler) step(decode, prefill float64) float64 {
	groups := d.truth.Shape().Groups()
	each := func(n float64) int { return int(math.Ceil(n / float64(groups))) }
	l := kernels.Load{Decode: each(decode), Prefill: each(prefill)}
	l.Context = l.Decode * int(d.prompt+d.output/2)
	if l.Prefill > 0 {
		l.Chunks = d.truth.Chunk(0, l.Prefill)
	}
	return d.truth.Even(l, int(decode+prefill))
}

// most returns the requests per second of a replica in the profile within this time between tokens.
func (d *throughputScaler) most(tpot float64) float64 {
	low, high := 0.0, 1e4
	for range 40 {
		rate := (low + high) / 2
		step := .001
		for range 30 { // the step at that rate
			step += (d.step(rate*d.output*step, min(rate*d.prompt*step, float64(d.chunk))) - step) / 2
		}
		full := d.step(rate*d.output*step, float64(d.chunk))
		if rate*d.prompt*full < float64(d.chunk) && step <= tpot {
			low = rate
		} else {
			high = rate
		}
	}
	return low
}

func (d *throughputScaler) Scale(s simulator.Replicas) int {
	n := len(s.Serving) + s.Starting
	if s.Ended.Answers == 0 || s.Arrived == 0 {
		return n
	}
	d.prompt, d.output = float64(s.Ended.Prompts)/float64(s.Ended.Answers), float64(s.Ended.Outputs)/float64(s.Ended.Answers)
	rate := float64(s.Arrived) / s.Seconds
	next := rate
	if d.trend && d.seen {
		next = max(0, 2*rate-d.last)
	}
	d.last, d.seen = rate, true
	// Corrections: measured over profiled, at the load of each replica. For prompts, only values below the profile
	// count, which are due to the cache.
	each := rate / float64(max(len(s.Serving), 1))
	step := .001
	for range 30 {
		step += (d.step(each*d.output*step, min(each*d.prompt*step, float64(d.chunk))) - step) / 2
	}
	prefill := 1.0
	if ttft := s.Ended.FirstTokens / float64(s.Ended.Answers); ttft > 0 {
		prefill = min(1, ttft/(step*max(1, d.prompt*float64(d.truth.Shape().Groups())/float64(d.chunk))))
	}
	tpot := d.tpot
	if s.Ended.Longer > 0 {
		tpot = d.tpot / max(s.Ended.PerTokens/float64(s.Ended.Longer)/step, .1)
	}
	most := d.most(max(tpot, 1e-3))
	return max(1, int(math.Ceil(next*max(prefill, .1)/max(most*d.part, 1e-6))))
}

// loadScaler is Dynamo's planner in load mode (same page). It adds a replica when the predicted TTFT or ITL of all
// replicas is above the SLO. It removes one when all are below a part of it. It predicts from the current queues.
type loadScaler struct {
	profile  throughputScaler
	interval float64
	part     float64 // sensitivity of scaling down
	most     float64 // part of the SLO above which it scales up
}

func (d *loadScaler) Every() float64 { return d.interval }

func (d *loadScaler) Scale(s simulator.Replicas) int {
	n := len(s.Serving) + s.Starting
	if s.Ended.Answers > 0 {
		d.profile.prompt, d.profile.output = float64(s.Ended.Prompts)/float64(s.Ended.Answers), float64(s.Ended.Outputs)/float64(s.Ended.Answers)
	}
	if d.profile.prompt == 0 || s.Starting > 0 { // it waits for the replicas that are starting
		return n
	}
	above, below := true, true
	for _, r := range s.Serving {
		full := d.profile.step(float64(r.Running), float64(d.profile.chunk))
		ttft := (float64(r.QueuedTokens) + d.profile.prompt) / float64(d.profile.chunk) * full
		itl := d.profile.step(float64(max(r.Running, 1)), min(float64(r.QueuedTokens), float64(d.profile.chunk)))
		over := max(ttft/d.profile.ttft, itl/d.profile.tpot)
		above, below = above && over > d.most, below && over < d.part*d.most
	}
	switch {
	case above:
		return n + 1
	case below:
		return n - 1
	}
	return n
}

// saturationScaler is llm-d's workload variant autoscaler with its saturation analyser
// (github.com/llm-d/llm-d-workload-variant-autoscaler, deploy/configmap-saturation-scaling.yaml of v0.9.0 and its
// docs), followed by an HPA. A replica is saturated by KV or queue. It adds one when the mean spare KV or queue of the
// others is below the trigger. It removes one when the rest would keep that spare capacity with its load, throughout
// the stabilization window.
type saturationScaler struct {
	kv, queue           float64 // thresholds
	spareKV, spareQueue float64 // triggers
	interval, steady    float64

	calm float64 // seconds for which one replica fewer would have been enough
}

func (w *saturationScaler) Every() float64 { return w.interval }

func (w *saturationScaler) Scale(s simulator.Replicas) int {
	n := len(s.Serving) + s.Starting
	if s.Starting > 0 { // starting replicas are not requested again
		w.calm = 0
		return n
	}
	var open, kv, queue, used, waits float64
	for _, r := range s.Serving {
		used, waits = used+r.KVUsed, waits+float64(r.Waiting)
		if r.KVUsed >= w.kv || float64(r.Waiting) >= w.queue {
			continue
		}
		open++
		kv, queue = kv+w.kv-r.KVUsed, queue+w.queue-float64(r.Waiting)
	}
	if open == 0 || kv/open < w.spareKV || queue/open < w.spareQueue {
		w.calm = 0
		return n + 1
	}
	left := open - 1
	if left >= 1 && w.kv-used/left >= w.spareKV && w.queue-waits/left >= w.spareQueue {
		if w.calm += s.Seconds; w.calm >= w.steady {
			w.calm = 0
			return n - 1
		}
		return n
	}
	w.calm = 0
	return n
}

// contenderOf a grid, with its parameters in words.
type contenderOf struct {
	kind, what string
	make       func() simulator.Scaler
}

// scalerGrid has the parameters to try, including the documented defaults.
func scalerGrid(truth *kernels.Step, chunk int, ttft, tpot float64, quick bool) []contenderOf {
	var out []contenderOf
	thin := func(values ...float64) []float64 {
		if !quick {
			return values
		}
		return []float64{values[0], values[len(values)/2]}
	}
	for _, interval := range thin(180, 60, 15) {
		for _, part := range thin(1, .7, .5, .3) {
			for _, trend := range []bool{false, true} {
				base := throughputScaler{truth: truth, chunk: chunk, ttft: ttft, tpot: tpot, interval: interval, trend: trend, part: part}
				out = append(out, contenderOf{"dynamo-throughput", fmt.Sprintf("every %.0f s, %.1f of the profile, trend %t", interval, part, trend),
					func() simulator.Scaler { b := base; return &b }})
			}
		}
	}
	for _, interval := range thin(5, 30) {
		for _, part := range thin(.8, .5, .2) {
			for _, most := range thin(1, .25) {
				base := loadScaler{profile: throughputScaler{truth: truth, chunk: chunk, ttft: ttft, tpot: tpot}, interval: interval, part: part, most: most}
				out = append(out, contenderOf{"dynamo-load", fmt.Sprintf("every %.0f s, up above %.2f of the SLO, down below %.2f of that", interval, most, part),
					func() simulator.Scaler { b := base; return &b }})
			}
		}
	}
	for _, kv := range thin(.8, .4) {
		for _, queue := range thin(5, 20, 50) {
			for _, spare := range thin(.1, .3, .6) {
				for _, steady := range thin(300, 120) {
					base := saturationScaler{kv: kv, queue: queue, spareKV: spare * kv, spareQueue: spare * queue, interval: 15, steady: steady}
					out = append(out, contenderOf{"wva-saturation", fmt.Sprintf("KV %.2f, queue %.0f, spare %.0f %% of both, down after %.0f s", kv, queue, 100*spare, steady),
						func() simulator.Scaler { b := base; return &b }})
				}
			}
		}
	}
	return out
}
