// Package drivertest simulates agents for tests of their callers. The agents keep the rules of the real agent's state
// machine (docs/architecture.md, sections 4 and 8), in memory.
package drivertest

import (
	"fmt"
	"io"
	"maps"
	"sync"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// World has the agents of one world, their engines, and the gate between them. An attempt flips when every agent that
// prepared it is permitted. It is safe for concurrent use.
type World struct {
	name string
	view *geometry.View

	mu        sync.Mutex
	changed   chan struct{}     // closed and replaced when anything may have changed
	agents    map[string]*Agent // by address
	cuts      map[[2]string]bool
	holdGate  bool
	holdStage bool
	// The gate opens once, for members, when the first abort arrives at one of them. An abort at a joiner does not open
	// it, because that joiner withdraws.
	openAtAbort, openAtResolve bool
	holdRuns                   int // runs pause when this many of their flips are left to begin; 0: never
	memory                     uint64

	trace       io.Writer // events of the gates; nil: none
	started     int       // number of agents so far
	manual      bool      // only Step takes steps
	words       map[string]bool
	stepped     map[string]bool // hashes of layouts that took a step
	past        map[string]bool // layouts that were followed by another one
	latest      string
	fates       map[Fate]int
	inventories map[string]*tangramv1.Inventory

	paused map[uint64]bool // by attempt: it requested that no step is computed
	routes []uint64        // tokens by (layer, expert) between two load queries
}

// Pod is a pod that runs an agent.
type Pod struct {
	Name, UID, Node string
	Address         string // of the agent; names it in the World
	Ranks           int
}

// shape returns a small model that worlds of 1 to 6 ranks can serve in either mode.
func shape() *tangramv1.Geometry {
	return &tangramv1.Geometry{Model: "m", Layers: 2, MoeLayers: []uint32{0, 1}, Hidden: 8, MoeInner: 96, Experts: 12, TopK: 2,
		QueryHeads: 12, KvHeads: 6, HeadDim: 4, GranuleRows: 8, GranuleBytes: 3 * 8 * 8 * 2, Dtype: tangramv1.DType_DTYPE_BF16,
		SlabFormat: tangramv1.SlabFormat_SLAB_FORMAT_GRANULE_MAJOR, PageBytes: 4096, DenseBytes: 10000, KvHeadTokenBytes: 32}
}

// NewWorld returns a world without agents.
func NewWorld(name string) (*World, error) {
	view, err := geometry.New(shape())
	if err != nil {
		return nil, fmt.Errorf("drivertest: %w", err)
	}
	return &World{name: name, view: view, agents: map[string]*Agent{}, cuts: map[[2]string]bool{}, memory: 1 << 30,
		changed: make(chan struct{}), words: map[string]bool{}, stepped: map[string]bool{}, past: map[string]bool{}, fates: map[Fate]int{},
		inventories: map[string]*tangramv1.Inventory{}}, nil
}

// Start starts an agent, with its engines attached and in no layout.
func (w *World) Start(p Pod) *Agent {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := &Agent{w: w, pod: p, number: w.started, phase: tangramv1.Phase_PHASE_IDLE, engines: make([]engine, p.Ranks)}
	w.started++
	for device := range a.engines {
		a.engines[device].incarnation = 1
	}
	w.agents[p.Address] = a
	w.changedLocked()
	return a
}

// Find returns the agent of an address, or nil.
func (w *World) Find(address string) *Agent {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.agents[address]
}

// Stop ends an agent and its engines, as if their processes were killed: its memory is lost, and its attempts cannot
// flip.
func (w *World) Stop(address string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a := w.agents[address]; a != nil {
		a.stopped = true
		delete(w.agents, address)
	}
	w.changedLocked()
}

// Cut cuts the connection between the engines of two members, or heals it.
func (w *World) Cut(a, b string, cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a > b {
		a, b = b, a
	}
	w.cuts[[2]string{a, b}] = cut
	w.changedLocked()
}

// HoldGate keeps permitted attempts from flipping, like engines that decline.
func (w *World) HoldGate(hold bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holdGate = hold
	if !hold {
		for _, a := range w.agents {
			w.gateLocked(a.attempt)
		}
	}
	w.changedLocked()
}

// OpenAtAbort keeps the gate shut until the first abort arrives at a member: it opens just before.
func (w *World) OpenAtAbort() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holdGate, w.openAtAbort = true, true
}

// OpenAtResolve keeps the gate shut until an agent receives an outcome. It opens just before, but holding agents stay.
func (w *World) OpenAtResolve() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holdGate, w.openAtResolve = true, true
}

// HoldStage keeps agents half-way through staging.
func (w *World) HoldStage(hold bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holdStage = hold
	for _, a := range w.agents {
		if !hold && a.phase == tangramv1.Phase_PHASE_STAGING {
			a.phase = tangramv1.Phase_PHASE_STAGED
		}
	}
	w.changedLocked()
}

// SetMemory sets the memory of each rank of all agents, in bytes.
func (w *World) SetMemory(bytes uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.memory = bytes
}

// Layout returns the active layout: the one of the highest epoch that an agent has; nil: none.
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

// Idle says that no agent has an open attempt.
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

// changedLocked notifies watchers, and lets engines detect that a step cannot complete.
func (w *World) changedLocked() {
	if !w.manual {
		for w.breakLocked() || w.walkLocked() {
		}
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

// breakLocked stops the engines of layouts that lack a member; true: one stopped.
func (w *World) breakLocked() bool {
	stopped := false
	for _, a := range w.agents {
		if a.layout == nil || w.wholeLocked(a) {
			continue
		}
		for device := range a.engines {
			if layout.RankOf(a.layout, a.Member(device)) >= 0 && !a.engines[device].stopped && !a.engines[device].hung {
				a.engines[device].stopped, stopped = true, true
				a.endRunLocked("its engine is stopped")
			}
		}
	}
	return stopped
}

// wholeLocked: all members of an agent's layout have that layout, run, and reach each other.
func (w *World) wholeLocked(a *Agent) bool {
	for i, m := range a.layout.Members {
		b, device := w.ownerLocked(m.Id)
		if b == nil || b.engines[device].stopped || b.engines[device].detached || b.engines[device].hung || string(b.hash) != string(a.hash) {
			return false
		}
		for _, other := range a.layout.Members[i+1:] {
			if w.cutLocked(m.Id, other.Id) {
				return false
			}
		}
	}
	return true
}

func (w *World) ownerLocked(member string) (*Agent, int) {
	for _, a := range w.agents {
		for device := range a.engines {
			if a.Member(device) == member {
				return a, device
			}
		}
	}
	return nil, 0
}

func (w *World) cutLocked(a, b string) bool {
	if a > b {
		a, b = b, a
	}
	return w.cuts[[2]string{a, b}]
}

// reachLocked: the engine of one member has a connection to that of the other.
func (w *World) reachLocked(from, to string) bool {
	b, device := w.ownerLocked(to)
	return b != nil && !b.engines[device].detached && !b.lostLocked(device) && !b.engines[device].hung && !w.cutLocked(from, to)
}

// lostLocked: the engine of a device is reattached, and no repair has sent its address yet.
func (a *Agent) lostLocked(device int) bool {
	return a.engines[device].fresh && (a.phase == tangramv1.Phase_PHASE_IDLE || a.phase == tangramv1.Phase_PHASE_FLIPPED)
}

func (w *World) inventoryLocked(l *tangramv1.Layout, hash []byte, rank uint32) *tangramv1.Inventory {
	key := fmt.Sprintf("%s %d", hash, rank)
	if w.inventories[key] == nil {
		w.inventories[key] = layout.InventoryOf(l, w.view, rank)
	}
	return w.inventories[key]
}

func (a *Agent) inLocked(l *tangramv1.Layout) bool {
	for device := range a.engines {
		if layout.RankOf(l, a.Member(device)) >= 0 {
			return true
		}
	}
	return false
}

// Paused returns for each prepared attempt whether it requested that no step is computed.
func (w *World) Paused() map[uint64]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.paused)
}
