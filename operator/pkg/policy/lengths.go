package policy

import "math"

// lengthsSeen are the lengths of prompts and answers, in the mean of the last ones.
type lengthsSeen struct {
	prompt, variance float64 // tokens of an arriving prompt, and their variance
	output           float64
	reused           float64 // share of prompt tokens found cached
}

func (l *lengthsSeen) known() bool { return l.prompt > 0 && l.output > 0 }

// add what changed since the report before; lengths are averaged over so many requests, at least 16.
func (l *lengthsSeen) add(before, t Telemetry, over float64) {
	arrived, finished := float64(t.Arrived-before.Arrived), float64(t.Finished-before.Finished)
	keep := 1 / max(over, 16)
	if tokens := float64(t.PromptTokens - before.PromptTokens); arrived > 0 && tokens > 0 {
		if l.prompt > 0 { // the mean of n prompts varies n times less than one
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

// now, with what the requests that are there tell.
func (l *lengthsSeen) now(t Telemetry) lengths {
	out := lengths{prompt: max(l.prompt*(1-l.reused), 1), longer: 1 + l.variance/(l.prompt*l.prompt), output: max(l.output, 1), context: l.prompt + l.output/2}
	if t.Decoding > 0 {
		out.context = float64(t.ContextTokens) / float64(t.Decoding)
	}
	return out
}

// contexts of decoding requests, in the mean of the last ones. With few requests those that happen to be there now say little of the others, by whose context a
// past of many minutes is to be played.
type contexts struct{ tokens, requests float64 } // each times seconds

// add a reading that holds for so many seconds; what is older than `over` seconds counts 1/e.
func (c *contexts) add(t Telemetry, seconds, over float64) {
	old := math.Exp(-seconds / over)
	c.tokens, c.requests = c.tokens*old+float64(t.ContextTokens)*seconds, c.requests*old+float64(t.Decoding)*seconds
}

// of lengths, as far as requests were seen to decode.
func (c *contexts) of(l lengths) lengths {
	if c.requests > 0 && c.tokens > 0 {
		l.context = c.tokens / c.requests
	}
	return l
}
