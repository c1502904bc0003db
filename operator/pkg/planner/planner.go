// Package planner computes the chain of flips from the verified inventories of a world's agents to a desired shape. It
// moves as few bytes as any layout of that shape allows. Pure: no I/O, no clock, no globals.
//
// Rules of places, banks and flips: docs/architecture.md, section 8.
package planner

import (
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// KV is a member's KV region as its engine reports it. Pages 0: no engine yet, not checked.
type KV struct {
	Pages          uint64 // head pages: one KV head, one layer, one block of tokens
	BlockTokens    uint32
	ReservedTokens uint64 // of admitted requests: prompt plus maximum generation
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
	// SpareBanks is the number of layers that one flip may rewrite (k), for a first layout. Later plans keep the banks
	// of the active layout. 0 means 1.
	SpareBanks uint32
	// FromCheckpoint reads missing pieces from the checkpoint even if other ranks hold them. For benches that measure
	// the value of peers.
	FromCheckpoint bool
}

// Input of a plan.
type Input struct {
	World    string
	Revision string
	Geometry *geometry.View
	Current  *tangramv1.Layout // nil: no active layout yet
	// Members: every member of Current whose agent answers, and every joiner. A missing member of Current is lost: its
	// pieces come from other sources.
	Members []Member
	// Target: ids of the members of the final layout. Those of Current keep their order; the others are appended in the
	// given order.
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

// Plan computes the chain. It rejects, with the numbers in the error, misfits of shapes, memory (peak of any flip on
// any rank) and KV. A world that already has the shape and holds all of it gets a plan of 0 flips. The messages of
// Input are only read. Those of the result share layers with each other and with Current and must not be changed.
func Plan(in Input) (*Result, error) { return plan(in) }
