// Package planner makes the chain of flips that takes a world from what its agents
// verifiably hold to a wanted shape, with as few bytes moved as any layout of that
// shape allows. Pure: no I/O, no clock, no globals.
//
// Rules of places, banks and flips: docs/architecture.md, section 8.
package planner

import (
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// KV is what a member's engine says about its KV region. Pages 0: no engine yet, not checked.
type KV struct {
	Pages          uint64 // head pages: one KV head, one layer, one block of tokens
	BlockTokens    uint32
	ReservedTokens uint64 // of admitted requests, prompt plus the most they may generate
}

// Member is one rank's agent as it reports itself.
type Member struct {
	Member      *tangramv1.Member
	Inventory   *tangramv1.Inventory // nil: holds nothing (a joiner; a lost member)
	MemoryBytes uint64               // of the pool; 0: not checked
	KV          KV
}

// Options of a plan.
type Options struct {
	// SpareBanks is k of a first layout: how many layers one flip may rewrite. Later plans
	// keep the banks of the layout that serves. 0 means 1.
	SpareBanks uint32
	// FromCheckpoint: what a rank lacks is read from the checkpoint, also where others hold it. For benches of what peers are worth.
	FromCheckpoint bool
}

// Input of a plan.
type Input struct {
	World    string
	Revision string
	Geometry *geometry.View
	Current  *tangramv1.Layout // nil: nothing serves yet
	// Members: every member of Current whose agent answers, and every joiner. One of
	// Current that is not here is lost: its pieces come from elsewhere.
	Members []Member
	// Target: ids of the members that the final layout has. Those of Current keep their
	// order; the others are appended in the order given.
	Target  []string
	Shape   layout.Shape
	Options Options
}

// Result of a plan.
type Result struct {
	Plan    *tangramv1.Plan
	Final   *tangramv1.Layout   // the layout after the last flip; Current if there is none
	Layouts []*tangramv1.Layout // after each flip
}

// Plan makes the chain. It refuses, naming the numbers, what does not fit: shapes,
// memory (peak of any flip on any rank), KV. A world that already has the shape and
// holds all of it gets a plan of 0 flips. The messages of Input are only read; those of
// the result share layers with each other and with Current and must not be changed.
func Plan(in Input) (*Result, error) { return plan(in) }
