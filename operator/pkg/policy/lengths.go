package policy

import "math"

// lengthsSeen are averages of recent lengths of prompts and responses.
type lengthsSeen struct {
	prompt, variance float64 // tokens of an arriving prompt, and their variance
	output           float64
	reused           float64 // share of prompt tokens found cached
}

func (l *lengthsSeen) known() bool { return l.prompt > 0 && l.output > 0 }

// add the change since the previous report; lengths are averaged over this many requests, at least 16.
func (l *lengthsSeen) add(before, t Telemetry, over float64) {
	arrived, finished := float64(t.Arrived-before.Arrived), float64(t.Finished-before.Finished)
	keep := 1 / max(over, 16)
	if tokens := float64(t.PromptTokens - before.PromptTokens); arrived > 0 && tokens > 0 {
		if l.prompt > 0 { // the variance of the mean of n prompts is 1/n of that of one
			off := tokens/arrived - l.prompt
			l.variance += (off*off*arrived - l.variance) * min(keep, 1)
		}
		blend(&l.prompt, tokens/arrived, arrived*keep)
		blend(&l.reused, min(float64(t.ReusedTokens-before.ReusedTokens)/tokens, 1), arrived*keep)
	}
	if finished > 0 {
		blend(&l.output, float64(t.OutputTokens-before.OutputTokens)/finished, finished*keep)
	}
}

// now returns the lengths, with the context of the present requests.
func (l *lengthsSeen) now(t Telemetry) lengths {
	out := lengths{prompt: max(l.prompt*(1-l.reused), 1), longer: 1 + l.variance/(l.prompt*l.prompt), output: max(l.output, 1), context: l.prompt + l.output/2}
	if t.Decoding > 0 {
		out.context = float64(t.ContextTokens) / float64(t.Decoding)
	}
	return out
}

// contexts averages the context of decoding requests over time. With few requests, the present ones are a poor sample
// for the replay of many minutes.
type contexts struct{ tokens, requests float64 } // each times seconds

// add a reading that holds for `seconds`; data older than `over` seconds has weight 1/e.
func (c *contexts) add(t Telemetry, seconds, over float64) {
	old := math.Exp(-seconds / over)
	c.tokens, c.requests = c.tokens*old+float64(t.ContextTokens)*seconds, c.requests*old+float64(t.Decoding)*seconds
}

// of sets the mean context, if decoding requests were observed.
func (c *contexts) of(l lengths) lengths {
	if c.requests > 0 && c.tokens > 0 {
		l.context = c.tokens / c.requests
	}
	return l
}
