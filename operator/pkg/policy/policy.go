// Package policy decides in which shape a world should serve: telemetry and state in; a decision, its reasons with figures and what
// was rejected, and why, out. Pure: no I/O, no globals, and no clock but the one that telemetry carries.
package policy

import (
	"fmt"
	"math"

	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/kernels"
)

// Telemetry of a world at one moment. Counters only grow; At is in seconds of any clock that does not jump.
type Telemetry struct {
	At float64

	Running       int     // requests that were admitted: their prompts are computed, or they get tokens
	Decoding      int     // those of Running that get tokens
	Waiting       int     // requests that were not admitted yet
	QueuedTokens  int     // prompt tokens of both that are to be computed yet
	ContextTokens int     // of the decoding requests
	Generated     int     // tokens that these were given so far
	Reserved      int     // tokens of KV that admitted requests may come to need
	WaitingNeed   int     // tokens of KV that waiting requests may come to need
	CachedTokens  int     // of KV that no live request holds, kept for prompts that begin alike
	Arrived       uint64  // counter: requests
	PromptTokens  uint64  // counter: of arrived requests
	ReusedTokens  uint64  // counter: prompt tokens that were found cached
	Finished      uint64  // counter: requests
	OutputTokens  uint64  // counter: of finished requests
	Steps         uint64  // counter: steps
	StepSeconds   float64 // counter: seconds in steps

	Felt Felt // by clients, lately; only policies of the width look at it
}

// Felt by the clients whose answers ended in some last seconds.
type Felt struct {
	Answers    int     // that ended
	Within     float64 // share of them within the SLO
	FirstToken float64 // seconds: quantile of the times to the first token, at the SLO's share; 0: not known
	PerToken   float64 // the same of the mean times between later tokens
}

// Option is a shape that a world could serve in.
type Option struct {
	Shape       kernels.Shape
	WorldTokens int                  // of KV that fit
	Switch      costmodel.Transition // from the shape that serves
	Refused     string               // why planner or memory refuse it; empty: they do not
	Against     *Reason              // why the policy of the width is against it; nil: it is not
}

// State of the world, beside what it measures.
type State struct {
	Shape   kernels.Shape
	Options []Option // the shape that serves included
	Rates   costmodel.Rates
	Busy    bool // a transition is under way
	DryRun  bool // nobody follows a decision: a switch that is not made is decided anew while it pays, and counts for nothing
	Pods    Pods // only policies of the width look at it
}

// Pods that are to make the world wider.
type Pods struct {
	Wanted  kernels.Shape // decided on, and not there yet since its pods start; zero: none
	Ready   int           // ranks that could serve now, those that do included
	Standby int           // of these, ranks that do not serve and are kept ready: they join within a second or so, and others are started for them
	Waiting float64       // seconds since it was decided on
	Refused bool          // the cluster has no room for some of them
	Startup float64       // seconds that pods took lately from being wanted to being ready; 0: not known
}

// Reason is one sentence with the figures that it rests on, by name, so that a checker can work them out again.
type Reason struct {
	Text    string
	Figures map[string]float64
}

// Rejected alternative, and why.
type Rejected struct {
	Shape kernels.Shape
	Why   Reason
}

// Cause of a decision that is held, where somebody has to do something about it; empty: nobody has.
type Cause string

// Decision of a policy. Held: no decision was possible, the layout stays; Why says what was wrong.
type Decision struct {
	Switch   bool
	Held     bool
	Withheld bool // a switch would pay, and is not made yet
	Cause    Cause
	To       kernels.Shape // the shape that serves if there is no switch
	Why      Reason
	Rejected []Rejected
}

// Policy is asked again and again, at times that do not go back. The same calls get the same decisions.
type Policy interface {
	Decide(Telemetry, State) Decision
	// Observe a step that was measured in this shape; many policies need none.
	Observe(kernels.Shape, costmodel.Work, float64)
}

func stay(s State, text string, figures map[string]float64) Decision {
	return Decision{To: s.Shape, Why: Reason{text, figures}}
}

func hold(s State, format string, args ...any) Decision {
	return Decision{Held: true, To: s.Shape, Why: Reason{Text: fmt.Sprintf(format, args...)}}
}

// Most seconds between two reports; more is stale.
const staleAfter = 30

// guard refuses telemetry that cannot be right. It remembers the last that was.
type guard struct {
	seen bool
	last Telemetry
}

// check says what is wrong with what was reported; "" if nothing is. After a clock or counter that went back the next
// report is compared with that one: a world that was started anew counts from zero.
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

// option of a shape; nil if it is none of the state's.
func (s State) option(shape kernels.Shape) *Option {
	for i := range s.Options {
		if s.Options[i].Shape == shape {
			return &s.Options[i]
		}
	}
	return nil
}

// refusal of a switch to an option by planner or memory, and the figures it rests on; nil if they do not refuse.
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
