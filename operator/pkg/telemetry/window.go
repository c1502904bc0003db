package telemetry

import (
	"errors"
	"fmt"
)

// ErrNotKept says that what was read then is not known any more, and never will be.
var ErrNotKept = errors.New("telemetry: the readings are no longer kept")

// Window is what some last seconds said.
type Window struct {
	Seconds  float64 // that it covers
	Grown    Counters
	Answers  Latencies
	Steps    map[StepKey]Steps
	Readings int
	// The longest of its samples.
	LongestGap, Silence float64
}

// History of samples, as far back as somebody may ask.
type History struct {
	keep    float64
	samples []*Sample
}

// NewHistory keeps so many seconds.
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

// Last sample; nil: there is none.
func (h *History) Last() *Sample {
	if n := len(h.samples); n > 0 {
		return h.samples[n-1]
	}
	return nil
}

// Window of the last so many seconds before now, in whole readings. The error says that nothing is known of them: no reading that
// another one precedes, or the last one is older than stale.
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

// Between two moments: of the readings after the one, up to the first that is not before the other. The error says that not all of it is known.
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

// add what a sample says.
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

// TokensPerSecond that clients were given.
func (w *Window) TokensPerSecond() float64 { return float64(w.Grown.Written) / w.Seconds }

// Goodput is answers and tokens per second that were surely within an SLO.
func (w *Window) Goodput(s SLO) (answers, tokens float64) {
	a := w.Answers.Attainment(s)
	return float64(a.Within) / w.Seconds, float64(a.Tokens) / w.Seconds
}
