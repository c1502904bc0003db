// Package drivertest plays agents for tests of what drives them: they keep the rules of the
// real agent's state machine (docs/architecture.md, section 4), in memory.
package drivertest

import (
	"fmt"
	"sync"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// World is the agents of one world and the gate between them: an attempt flips when every
// agent that prepared it is permitted. Safe for concurrent use.
type World struct {
	name string
	view *geometry.View

	mu        sync.Mutex
	agents    map[string]*Agent // by address
	holdGate  bool
	holdStage bool
	memory    uint64
}

// Pod in which an agent runs.
type Pod struct {
	Name, UID, Node string
	Address         string // of the agent; names it in the World
	Ranks           int
}

// shape of a small model that worlds of 1 to 6 ranks can serve in either mode.
func shape() *tangramv1.Geometry {
	return &tangramv1.Geometry{Model: "m", Layers: 2, MoeLayers: []uint32{0, 1}, Hidden: 8, MoeInner: 96, Experts: 12, TopK: 2,
		QueryHeads: 12, KvHeads: 6, HeadDim: 4, GranuleRows: 8, GranuleBytes: 3 * 8 * 8 * 2, Dtype: tangramv1.DType_DTYPE_BF16,
		SlabFormat: tangramv1.SlabFormat_SLAB_FORMAT_GRANULE_MAJOR, PageBytes: 4096, DenseBytes: 10000, KvHeadTokenBytes: 32}
}

// NewWorld has no agents yet.
func NewWorld(name string) (*World, error) {
	view, err := geometry.New(shape())
	if err != nil {
		return nil, fmt.Errorf("drivertest: %w", err)
	}
	return &World{name: name, view: view, agents: map[string]*Agent{}, memory: 1 << 30}, nil
}

// Start an agent, with its engines attached and in no layout.
func (w *World) Start(p Pod) *Agent {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := &Agent{w: w, pod: p, phase: tangramv1.Phase_PHASE_IDLE, attached: true}
	w.agents[p.Address] = a
	return a
}

// Find gives the agent of an address, or nil.
func (w *World) Find(address string) *Agent {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.agents[address]
}

// Stop an agent, as if its process were killed: what it held is lost, and attempts that it
// is part of cannot flip.
func (w *World) Stop(address string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a := w.agents[address]; a != nil {
		a.stopped = true
		delete(w.agents, address)
	}
}

// HoldGate keeps permitted attempts from flipping, as engines do that decline.
func (w *World) HoldGate(hold bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holdGate = hold
	if !hold {
		for _, a := range w.agents {
			w.gateLocked(a.attempt)
		}
	}
}

// HoldStage keeps agents half way through staging.
func (w *World) HoldStage(hold bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holdStage = hold
	for _, a := range w.agents {
		if !hold && a.phase == tangramv1.Phase_PHASE_STAGING {
			a.phase = tangramv1.Phase_PHASE_STAGED
		}
	}
}

// SetMemory of each rank, in bytes, for agents old and new.
func (w *World) SetMemory(bytes uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.memory = bytes
}

// Layout in force: of the highest epoch that an agent is in; nil: none.
func (w *World) Layout() *tangramv1.Layout {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out *tangramv1.Layout
	for _, a := range w.agents {
		if a.layout.GetEpoch() > out.GetEpoch() {
			out = a.layout
		}
	}
	return out
}

// Idle says that no agent is in the middle of an attempt.
func (w *World) Idle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.agents {
		if a.phase != tangramv1.Phase_PHASE_IDLE {
			return false
		}
	}
	return true
}

func (w *World) gateLocked(attempt uint64) {
	var in []*Agent
	for _, a := range w.agents {
		if attempt == 0 || a.attempt != attempt {
			continue
		}
		if a.phase != tangramv1.Phase_PHASE_PERMITTED || w.holdGate {
			return
		}
		in = append(in, a)
	}
	for _, a := range in { // every member of both layouts must have a word in the gate
		for _, l := range []*tangramv1.Layout{a.layout, a.target} {
			for _, m := range l.GetMembers() {
				if !holds(in, m.Id) {
					return
				}
			}
		}
	}
	for _, a := range in {
		a.phase, a.layout = tangramv1.Phase_PHASE_FLIPPED, a.target
		if !a.inLocked(a.layout) {
			a.layout = nil
		}
	}
}

func holds(agents []*Agent, member string) bool {
	for _, a := range agents {
		for device := range a.pod.Ranks {
			if a.Member(device) == member {
				return true
			}
		}
	}
	return false
}

func (a *Agent) inLocked(l *tangramv1.Layout) bool {
	for device := range a.pod.Ranks {
		if layout.RankOf(l, a.Member(device)) >= 0 {
			return true
		}
	}
	return false
}
