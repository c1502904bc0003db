package load

import (
	"fmt"
	"math"
	"strconv"
)

// Candidate is one fixed method to forecast the next window of a layer from earlier windows.
type Candidate struct {
	// Window: mean of the last `Window` windows. 0: use Decay.
	Window int
	// Decay of the weights per window of age; above 0 and below 1.
	Decay float64
	// Power flattens: shares to this power, normalised; above 0, at most 1. Under log-normal
	// drift of factor rho the best guess of a share is its share^rho, not itself.
	Power float64
}

// Candidates returns the default choices of NewPredictor. They include the five fixed ones that the bench `predict`
// compares with; the others fill the gaps between them.
func Candidates() []Candidate {
	return []Candidate{
		{Window: 1, Power: 1}, {Window: 2, Power: 1}, {Window: 4, Power: 1}, {Window: 10, Power: 1},
		{Decay: .3, Power: 1}, {Decay: .5, Power: 1}, {Decay: .7, Power: 1}, {Decay: .8, Power: 1}, {Decay: .9, Power: 1},
		{Window: 1, Power: .9}, {Decay: .3, Power: .9}, {Decay: .5, Power: .9},
		{Window: 1, Power: .8}, {Decay: .3, Power: .8}, {Decay: .5, Power: .8},
	}
}

// String returns the candidate's name in tables: "last", "mean 10", "ewma 0.5", "last ^0.9".
func (c Candidate) String() string {
	name := "last"
	switch {
	case c.Window == 0:
		name = "ewma " + strconv.FormatFloat(c.Decay, 'g', -1, 64)
	case c.Window > 1:
		name = "mean " + strconv.Itoa(c.Window)
	}
	if c.Power != 1 {
		name += " ^" + strconv.FormatFloat(c.Power, 'g', -1, 64)
	}
	return name
}

const mostWindow = 1024

func (c Candidate) check() error {
	switch {
	case c.Window < 0 || c.Window > mostWindow:
		return fmt.Errorf("load: candidate with a window of %d; want 1..%d, or 0 and a decay", c.Window, mostWindow)
	case c.Window > 0 && c.Decay != 0:
		return fmt.Errorf("load: candidate with a window of %d and a decay of %v; want one of them", c.Window, c.Decay)
	case c.Window == 0 && !(c.Decay > 0 && c.Decay < 1):
		return fmt.Errorf("load: candidate with a decay of %v; want above 0 and below 1", c.Decay)
	case !(c.Power > 0 && c.Power <= 1):
		return fmt.Errorf("load: candidate with a power of %v; want above 0 and at most 1", c.Power)
	}
	return nil
}

// history of one layer's windows that had tokens, as far back as the candidates need. An idle window gives no
// information about popularity, so it is not recorded.
type history struct {
	recent [][]float64       // newest last, shares at most the longest window
	decay  map[float64]*ewma // by Decay
}

// ewma is sum(Decay^age * tokens), kept normalised: shares, and the weight of the past in tokens. Weights by tokens
// keep a window of few requests from counting as much as a full one.
type ewma struct {
	shares []float64
	tokens float64
}

func (h *history) add(tokens []float64, sum float64, longest int) {
	row := append([]float64(nil), tokens...)
	if len(h.recent) == longest && longest > 0 {
		copy(h.recent, h.recent[1:])
		h.recent[longest-1] = row
	} else if longest > 0 {
		h.recent = append(h.recent, row)
	}
	for decay, m := range h.decay {
		past := decay * m.tokens
		for e, v := range tokens {
			m.shares[e] = (past*m.shares[e] + v) / (past + sum)
		}
		m.tokens = past + sum
	}
}

// shares writes a candidate's forecast into out; there is at least one window.
func (h *history) shares(c Candidate, out []float64) {
	if c.Window == 0 {
		copy(out, h.decay[c.Decay].shares)
	} else {
		clear(out)
		for _, row := range h.recent[max(0, len(h.recent)-c.Window):] {
			for e, v := range row {
				out[e] += v
			}
		}
		scale(out)
	}
	if c.Power != 1 {
		for e, v := range out {
			if v > 0 { // most of the time of a forecast is spent in the next line
				out[e] = math.Exp(c.Power * math.Log(v))
			}
		}
		scale(out)
	}
}

// scale to a sum of 1, in place; at least one value is positive.
func scale(shares []float64) {
	sum := 0.0
	for _, v := range shares {
		sum += v
	}
	for e := range shares {
		shares[e] /= sum
	}
}
