package policy

import (
	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/kernels"
)

// fluid is a world without single requests: it models the number of requests over time under a constant load.
type fluid struct {
	decoding, queued, waiting float64 // requests that get tokens; prompt tokens to compute; requests of these prompts
	context                   float64 // tokens, of a decoding request
	rate                      float64 // requests per second that arrive
	prompt, output            float64 // tokens of one: to compute, to generate
	longer                    float64 // mean prompt length by token over that by prompt: 1 + CV^2
	chunk                     float64 // maximum tokens of a step
	clump                     float64 // requests that arrive together: 1 or more
	room                      float64 // decoding requests that KV has room for
}

// speed is the seconds of a step in a shape.
type speed func(shape kernels.Shape, w costmodel.Work) float64

const fluidSteps = 32

// cost returns the request-seconds of serving in this shape for `horizon` seconds, after `stall` seconds without
// progress, and the world at the end.
func (f fluid) cost(shape kernels.Shape, of speed, stall, horizon float64) (float64, fluid) {
	inside := f.decoding + f.waiting
	cost := inside*stall + f.rate*stall*stall/2
	f.waiting += f.rate * stall
	f.queued += f.rate * stall * f.prompt
	dt := max(horizon-stall, 0) / fluidSteps
	for range fluidSteps {
		part := f.part(float64(shape.Groups()))
		f.waiting += f.rate * dt
		f.queued += f.rate * dt * f.prompt
		plain := of(shape, f.work(0))
		busy := 0.0 // seconds of dt in steps with prompt tokens
		steps := 0.0
		if f.queued > 0 && f.decoding < f.room {
			one := of(shape, f.work(part))
			steps = min(f.queued/part, dt/one)
			busy = steps * one
			done := min(f.queued, steps*part)
			admitted := min(f.waiting*done/f.queued, f.room-f.decoding)
			f.queued -= done
			f.waiting -= admitted
			f.decoding += admitted
		}
		steps += max(0, dt-busy) / plain
		f.decoding *= 1 / (1 + steps/f.output) // of `output` decoding requests, each step ends one
		cost += (f.decoding + f.waiting) * dt
	}
	return cost, f
}

// part is the number of prompt tokens that a step computes. A prompt is one group's work: a step takes as much as there
// are groups with a prompt, among queued prompts or those that arrive together. Prompts are fewer than groups under low
// load, or if most tokens belong to a few long ones.
func (f fluid) part(groups float64) float64 {
	there := max(f.queued, f.clump*f.prompt)
	prompts := min(groups, max(1, there/(f.prompt*f.longer)))
	return max(min(f.chunk/groups*prompts, there), 1)
}

// rest is the cost of the present requests without further arrivals, in the fastest shape.
func (f fluid) rest(all []kernels.Shape, of speed) float64 {
	step, token := 1e9, 1e9
	for _, s := range all {
		step = min(step, of(s, f.work(0)))
		token = min(token, of(s, costmodel.Work{Prefill: int(f.chunk), Before: int(f.prompt / 2)})/f.chunk)
	}
	return (f.decoding+f.waiting)*f.output*step + f.queued*token*(f.waiting/2+f.decoding)
}

func (f fluid) work(prefill float64) costmodel.Work {
	w := costmodel.Work{Decode: max(int(f.decoding+.5), 1), Context: max(int(f.context), 1), Prefill: int(prefill)}
	if w.Prefill > 0 {
		w.Before = int(f.prompt / 4)
	}
	return w
}
