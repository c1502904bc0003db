// Package policy decides in which shape a world should serve. It takes telemetry and state. It returns a decision, its
// reasons with figures, and the rejected options with reasons. Pure: no I/O, no globals, and no clock but that of the
// telemetry.
package policy

import (
	"fmt"
	"math"

	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/kernels"
)

// Telemetry of a world at one moment. Counters only grow; At is in seconds of any monotonic clock.
type Telemetry struct {
	At float64

	Running       int     // admitted requests: their prompts are computed, or they get tokens
	Decoding      int     // those of Running that get tokens
	Waiting       int     // requests not admitted yet
	QueuedTokens  int     // prompt tokens of both still to be computed
	ContextTokens int     // of the decoding requests
	Generated     int     // tokens generated for these so far
	Reserved      int     // maximum KV tokens of admitted requests
	WaitingNeed   int     // maximum KV tokens of waiting requests
	CachedTokens  int     // KV tokens without a live request, kept for prompts with the same prefix
	Arrived       uint64  // counter: requests
	PromptTokens  uint64  // counter: of arrived requests
	ReusedTokens  uint64  // counter: prompt tokens found cached
	Finished      uint64  // counter: requests
	OutputTokens  uint64  // counter: of finished requests
	Steps         uint64  // counter: steps
	StepSeconds   float64 // counter: seconds in steps

	Felt Felt // recent client latencies; only policies of the width use them
}

// Felt are client latencies of the responses that ended recently.
type Felt struct {
	Answers    int     // ended responses
	Within     float64 // share of them within the SLO
	FirstToken float64 // seconds: quantile of the times to the first token, at the SLO's share; 0: unknown
	PerToken   float64 // the same of the mean times between later tokens
}

// Option is a shape that a world could serve in.
type Option struct {
	Shape       kernels.Shape
	WorldTokens int                  // KV capacity
	Switch      costmodel.Transition // from the active shape
	Refused     string               // why planner or memory rejects it; empty: it is allowed
	Against     *Reason              // why the policy of the width avoids it; nil: it does not
}

// State of the world, besides telemetry.
type State struct {
	Shape   kernels.Shape
	Options []Option // including the active shape
	Rates   costmodel.Rates
	Busy    bool // a transition is in progress
	DryRun  bool // decisions are not carried out: a switch is decided again while it pays, and leaves no trace
	Pods    Pods // only policies of the width use it
}

// Pods that will make the world wider.
type Pods struct {
	Wanted  kernels.Shape // decided on, waiting for its pods; zero: none
	Ready   int           // ranks that could serve now, including those that do
	Standby int           // of these, standby ranks: they join within about a second, and others are started for them
	Waiting float64       // seconds since the decision
	Refused bool          // the cluster has no room for some of them
	Startup float64       // recent seconds from the request for pods until they are ready; 0: unknown
}

// Reason is one sentence with its figures by name, so that a checker can recompute them.
type Reason struct {
	Text    string
	Figures map[string]float64
}

// Rejected is a rejected alternative with the reason.
type Rejected struct {
	Shape kernels.Shape
	Why   Reason
}

// Cause of a held decision that requires action by a user; empty: no action.
type Cause string

// Decision of a policy. Held: no decision was possible and the layout stays; Why has the cause.
type Decision struct {
	Switch   bool
	Held     bool
	Withheld bool // a switch would pay, but is delayed
	Cause    Cause
	To       kernels.Shape // the active shape if there is no switch
	Why      Reason
	Rejected []Rejected
}

// Policy is called repeatedly, at times that do not go back. Equal calls get equal decisions.
type Policy interface {
	Decide(Telemetry, State) Decision
	// Observe a step that was measured in this shape; many policies ignore it.
	Observe(kernels.Shape, costmodel.Work, float64)
}

func stay(s State, text string, figures map[string]float64) Decision {
	return Decision{To: s.Shape, Why: Reason{text, figures}}
}

func hold(s State, format string, args ...any) Decision {
	return Decision{Held: true, To: s.Shape, Why: Reason{Text: fmt.Sprintf(format, args...)}}
}

// Maximum seconds between two reports; older telemetry is stale.
const staleAfter = 30

// guard rejects implausible telemetry. It keeps the last valid one.
type guard struct {
	seen bool
	last Telemetry
}

// check returns what is wrong with a report; "" if nothing. After a clock or counter that went back, the next report is
// compared with that one: a restarted world counts from zero.
func (g *guard) check(t Telemetry, s State) string {
	last, seen := g.last, g.seen
	if math.IsNaN(t.At) || math.IsInf(t.At, 0) {
		return fmt.Sprintf("the clock has the invalid value %v", t.At)
	}
	if math.IsNaN(t.StepSeconds) || math.IsInf(t.StepSeconds, 0) || t.StepSeconds < 0 {
		return fmt.Sprintf("the step time has the invalid value %v s", t.StepSeconds)
	}
	for _, c := range []struct {
		name string
		n    int
	}{{"running", t.Running}, {"decoding", t.Decoding}, {"waiting", t.Waiting}, {"queued tokens", t.QueuedTokens}, {"context tokens", t.ContextTokens},
		{"generated tokens", t.Generated}, {"reserved tokens", t.Reserved}, {"waiting tokens", t.WaitingNeed}, {"cached tokens", t.CachedTokens},
		{"running minus decoding", t.Running - t.Decoding}} {
		if c.n < 0 {
			return fmt.Sprintf("%s: %d is below 0", c.name, c.n)
		}
	}
	if err := s.Rates.Check(); err != nil {
		return err.Error()
	}
	g.last, g.seen = t, true
	switch {
	case !seen:
		return "this is the first report"
	case t.At <= last.At:
		return fmt.Sprintf("the clock went from %v to %v", last.At, t.At)
	case t.At > last.At+staleAfter:
		return fmt.Sprintf("no telemetry for %.1f s, more than %d", t.At-last.At, staleAfter)
	}
	for _, c := range []struct {
		name        string
		before, now uint64
	}{{"arrived", last.Arrived, t.Arrived}, {"prompt tokens", last.PromptTokens, t.PromptTokens}, {"reused tokens", last.ReusedTokens, t.ReusedTokens},
		{"finished", last.Finished, t.Finished}, {"output tokens", last.OutputTokens, t.OutputTokens}, {"steps", last.Steps, t.Steps}} {
		if c.now < c.before {
			return fmt.Sprintf("counter %s shrank from %d to %d", c.name, c.before, c.now)
		}
	}
	if t.StepSeconds < last.StepSeconds {
		return fmt.Sprintf("counter step seconds shrank from %v to %v", last.StepSeconds, t.StepSeconds)
	}
	return ""
}

// option returns the option of a shape; nil if the state has none.
func (s State) option(shape kernels.Shape) *Option {
	for i := range s.Options {
		if s.Options[i].Shape == shape {
			return &s.Options[i]
		}
	}
	return nil
}

// refusal is the reason against a switch to an option, with figures; nil: none.
func (o Option) refusal(t Telemetry) *Reason {
	if o.Refused != "" {
		return &Reason{Text: "The planner or the memory limit rejects this shape: " + o.Refused + "."}
	}
	if o.Against != nil {
		return o.Against
	}
	if t.Reserved > o.WorldTokens {
		return &Reason{"The KV cache that live requests may need does not fit into this shape.", map[string]float64{"reserved": float64(t.Reserved), "fits": float64(o.WorldTokens)}}
	}
	return nil
}

// Static never switches.
type Static struct{}

// Decide to stay.
func (Static) Decide(_ Telemetry, s State) Decision {
	return stay(s, "This policy never switches.", nil)
}

// Observe nothing.
func (Static) Observe(kernels.Shape, costmodel.Work, float64) {}
