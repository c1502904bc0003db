package telemetry

import (
	"errors"
	"fmt"
)

// ErrNotKept reports that those readings are no longer stored.
var ErrNotKept = errors.New("telemetry: the readings are no longer kept")

// Window is the sum over the last seconds.
type Window struct {
	Seconds  float64 // covered
	Grown    Counters
	Answers  Latencies
	Steps    map[StepKey]Steps
	Readings int
	// Maxima over its samples.
	LongestGap, Silence float64
}

// History of samples, of a fixed number of seconds.
type History struct {
	keep    float64
	samples []*Sample
}

// NewHistory keeps the last `keep` seconds.
func NewHistory(keep float64) (*History, error) {
	if !(keep > 0) || !time(keep) {
		return nil, fmt.Errorf("telemetry: invalid history length %v s", keep)
	}
	return &History{keep: keep}, nil
}

// Add the newest sample.
func (h *History) Add(s *Sample) error {
	if n := len(h.samples); n > 0 && s.At <= h.samples[n-1].At {
		return fmt.Errorf("telemetry: sample at %v after a sample at %v", s.At, h.samples[n-1].At)
	}
	h.samples = append(h.samples, s)
	old := 0
	for h.samples[old].At <= s.At-h.keep {
		old++
	}
	h.samples = append([]*Sample(nil), h.samples[old:]...)
	return nil
}

// Last returns the newest sample; nil: there is none.
func (h *History) Last() *Sample {
	if n := len(h.samples); n > 0 {
		return h.samples[n-1]
	}
	return nil
}

// Window of the last `seconds` before now, in whole readings. It fails without data: no reading has an earlier one, or
// the last one is older than stale.
func (h *History) Window(now, seconds, stale float64) (*Window, error) {
	last := h.Last()
	switch {
	case last == nil:
		return nil, fmt.Errorf("telemetry: no report was read yet")
	case !(now >= last.At):
		return nil, fmt.Errorf("telemetry: the clock went from %v to %v", last.At, now)
	case now-last.At > stale:
		return nil, fmt.Errorf("telemetry: no report was read for %.1f s, more than %v s", now-last.At, stale)
	}
	w := &Window{Answers: Latencies{}, Steps: map[StepKey]Steps{}}
	for i := len(h.samples) - 1; i >= 0 && h.samples[i].At > now-seconds; i-- {
		s := h.samples[i]
		if s.Seconds == 0 {
			break
		}
		w.add(s)
	}
	if w.Readings == 0 {
		return nil, fmt.Errorf("telemetry: the first reading has no earlier reading to compare with")
	}
	return w, nil
}

// Between covers the readings after `from`, up to the first one at or after `to`. It fails if some of the data is
// missing.
func (h *History) Between(from, to float64) (*Window, error) {
	last := h.Last()
	switch {
	case !(from < to):
		return nil, fmt.Errorf("telemetry: no reading lies between %v and %v", from, to)
	case last == nil || last.At < to:
		return nil, fmt.Errorf("telemetry: no report was read at %v or later", to)
	case h.samples[0].At > from:
		return nil, fmt.Errorf("%w: the readings begin at %v", ErrNotKept, h.samples[0].At)
	}
	w := &Window{Answers: Latencies{}, Steps: map[StepKey]Steps{}}
	for _, s := range h.samples {
		if s.At <= from {
			continue
		}
		w.add(s)
		if s.At >= to {
			break
		}
	}
	return w, nil
}

// add a sample.
func (w *Window) add(s *Sample) {
	w.Readings++
	w.Seconds += s.Seconds
	w.Grown = w.Grown.plus(s.Grown)
	w.Answers.Merge(s.Answers)
	w.LongestGap, w.Silence = max(w.LongestGap, s.LongestGap), max(w.Silence, s.Silence)
	for k, a := range s.Steps {
		b := w.Steps[k]
		w.Steps[k] = Steps{a.Steps + b.Steps, a.Seconds + b.Seconds, a.Decode + b.Decode, a.Context + b.Context, a.PromptTokens + b.PromptTokens, a.Before + b.Before}
	}
}

// TokensPerSecond delivered to clients.
func (w *Window) TokensPerSecond() float64 { return float64(w.Grown.Written) / w.Seconds }

// Goodput is responses and tokens per second that were surely within an SLO.
func (w *Window) Goodput(s SLO) (answers, tokens float64) {
	a := w.Answers.Attainment(s)
	return float64(a.Within) / w.Seconds, float64(a.Tokens) / w.Seconds
}
