package telemetry

import (
	"fmt"
	"math"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Counters of a world. They only grow.
type Counters struct {
	Arrived, PromptTokens, ReusedTokens   uint64 // requests at the engines; their prompt tokens, all and cached
	Finished, OutputTokens                uint64 // requests, and their tokens
	PrefillTokens, DecodeTokens           uint64 // computed
	Steps, PacedSteps, Overruns, Cut      uint64 // of the slowest rank: all take the same steps
	StepSeconds                           float64
	Sent, Answered, Failed, Left, Written uint64 // requests of the gateways' clients; tokens delivered
}

// Gauges of a world.
type Gauges struct {
	Running, Decoding, Waiting      int
	QueuedTokens, ContextTokens     int
	GeneratedTokens, ReservedTokens int
	WaitingTokens                   int
	QueueAge                        float64 // seconds that the oldest waiting request waits, at an engine or unassigned
	Homeless                        int     // requests without a rank
	KVPages, KVFree                 uint64
	Ranks, Silent                   int // active members; those without a recent report
}

// WaitingRequests is the number of requests that wait at an engine or unassigned.
func (g *Gauges) WaitingRequests() int { return g.Waiting + g.Homeless }

// KVUsage is the used part of the KV cache, 0 to 1.
func (g *Gauges) KVUsage() float64 {
	if g.KVPages == 0 {
		return 0
	}
	return 1 - float64(g.KVFree)/float64(g.KVPages)
}

// StepKey identifies similar steps.
type StepKey struct {
	Epoch   uint64
	Octave  uint32 // 2^Octave to 2^(Octave+1)-1 tokens
	Prefill bool   // with prompt tokens
}

// Steps is a sum over similar steps: the work of all ranks together.
type Steps struct {
	Steps                                 uint64
	Seconds                               float64
	Decode, Context, PromptTokens, Before uint64
}

// Mean step: seconds, requests that got a token, context of one of them, prompt tokens, and cached tokens before these.
func (s Steps) Mean() (seconds float64, decode, context, prefill, before int) {
	if s.Steps == 0 {
		return 0, 0, 0, 0, 0
	}
	per := func(n, by uint64) int { return int((n + by/2) / max(by, 1)) }
	return s.Seconds / float64(s.Steps), per(s.Decode, s.Steps), per(s.Context, s.Decode), per(s.PromptTokens, s.Steps), per(s.Before, s.PromptTokens)
}

// wrong returns what is implausible in a report; "" if nothing.
func wrong(world string, r *tangramv1.TelemetryReport) string {
	switch {
	case r == nil:
		return "no report"
	case r.World != world:
		return fmt.Sprintf("the report belongs to world %q, not %q", r.World, world)
	case r.Gateway == "":
		return "the report names no gateway"
	case !time(r.LongestGap) || !time(r.Silence):
		return fmt.Sprintf("invalid waiting times %v and %v s", r.LongestGap, r.Silence)
	case !time(r.At) || !time(r.UnassignedAgeSeconds):
		return fmt.Sprintf("invalid times %v and %v", r.At, r.UnassignedAgeSeconds)
	case r.Unassigned == 0 && r.UnassignedAgeSeconds > 0:
		return fmt.Sprintf("no request is without a rank, but the oldest has waited for %v s", r.UnassignedAgeSeconds)
	case r.Answered+r.Failed+r.Left > r.Arrived:
		return fmt.Sprintf("%d requests arrived, but %d ended", r.Arrived, r.Answered+r.Failed+r.Left)
	}
	seen := map[string]bool{}
	for _, rank := range r.Ranks {
		switch {
		case rank.Member == "" || seen[rank.Member]:
			return fmt.Sprintf("member %q is empty or listed twice", rank.Member)
		case !time(rank.Age):
			return fmt.Sprintf("%s: invalid age %v s", rank.Member, rank.Age)
		}
		seen[rank.Member] = true
		if what := wrongLoad(rank.Load); what != "" {
			return rank.Member + ": " + what
		}
	}
	return ""
}

// mostOctaves of the tokens of a step: more than any world computes in one.
const mostOctaves = 32

func wrongLoad(l *tangramv1.Load) string {
	t := l.GetTelemetry()
	switch {
	case t == nil:
		return "" // no report yet
	case l.KvFreePages > l.KvPages:
		return fmt.Sprintf("%d of %d pages are free", l.KvFreePages, l.KvPages)
	case t.Decoding > l.Running:
		return fmt.Sprintf("%d of %d running requests decode", t.Decoding, l.Running)
	case !time(t.QueueAge) || !time(t.StepSeconds):
		return fmt.Sprintf("invalid times %v and %v", t.QueueAge, t.StepSeconds)
	case t.PaceOverruns+t.PacedStepsTruncated > t.PacedSteps || t.PacedSteps > t.Steps:
		return fmt.Sprintf("invalid step counts: %d steps, %d paced, %d too long, %d truncated", t.Steps, t.PacedSteps, t.PaceOverruns, t.PacedStepsTruncated)
	case len(t.Cells) > 2*mostOctaves:
		return fmt.Sprintf("%d kinds of steps", len(t.Cells))
	}
	for _, c := range t.Cells {
		if c.Octave >= mostOctaves || !time(c.Seconds) || c.Steps == 0 || c.Prefill == (c.PromptTokens == 0) || c.Decode > c.Context {
			return fmt.Sprintf("invalid steps %v", c)
		}
	}
	return ""
}

// time reports whether v is a valid time: finite, and not below 0.
func time(v float64) bool { return v >= 0 && !math.IsInf(v, 0) }

// of returns a rank's counters that add up over ranks.
func of(t *tangramv1.RankTelemetry) Counters {
	return Counters{Arrived: t.GetArrived(), PromptTokens: t.GetPromptTokens(), ReusedTokens: t.GetReusedTokens(), Finished: t.GetFinished(),
		OutputTokens: t.GetOutputTokens(), PrefillTokens: t.GetPrefillTokens(), DecodeTokens: t.GetDecodeTokens(), Steps: t.GetSteps(),
		PacedSteps: t.GetPacedSteps(), Overruns: t.GetPaceOverruns(), Cut: t.GetPacedStepsTruncated(), StepSeconds: t.GetStepSeconds()}
}

func ofGateway(r *tangramv1.TelemetryReport) Counters {
	return Counters{Sent: r.Arrived, Answered: r.Answered, Failed: r.Failed, Left: r.Left, Written: r.OutputTokens}
}

// fields returns the integer counters.
func (c *Counters) fields() []*uint64 {
	return []*uint64{&c.Arrived, &c.PromptTokens, &c.ReusedTokens, &c.Finished, &c.OutputTokens, &c.PrefillTokens, &c.DecodeTokens,
		&c.Steps, &c.PacedSteps, &c.Overruns, &c.Cut, &c.Sent, &c.Answered, &c.Failed, &c.Left, &c.Written}
}

// since returns the growth since an earlier count; false if a counter shrank.
func (c Counters) since(before Counters) (Counters, bool) {
	now, was := c.fields(), before.fields()
	for i := range now {
		if *now[i] < *was[i] {
			return Counters{}, false
		}
		*now[i] -= *was[i]
	}
	c.StepSeconds -= before.StepSeconds
	return c, c.StepSeconds >= 0
}

// plus adds others.
func (c Counters) plus(o Counters) Counters {
	now, more := c.fields(), o.fields()
	for i := range now {
		*now[i] += *more[i]
	}
	c.StepSeconds += o.StepSeconds
	return c
}
