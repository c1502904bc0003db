package faults

import (
	"math"
	"slices"
	"testing"
	"time"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
	"tangram.dev/tests/internal/worlds"
)

// scene is the setting of a matrix: its worlds, one after another, the load, and the bounds.
type scene struct {
	report      string // file name in build/fault-matrix
	transitions []transition
	surveyed    func(point string) bool // nil: all
	start       func(*testing.T) *harness.World
	pods        int // live pods
	rest        shape
	source      load.Source
	judge       judge
	settle      time.Duration // until a world matches its shape, and until each rank has served a request
	reach       time.Duration // for a point that the transition passes without a death
	most        int           // maximum number of a layer's experts on one rank
	slower      float64       // bounds.slower; infinite: pauses are not judged
	tries       int           // attempts of a cell until its point is reached with KV to move
	oneNode     bool
}

const (
	leastStep = 20 * time.Millisecond // of engines: keeps the world busy without loading the machine
	answer    = 50                    // maximum tokens: each case waits for the last one
	// A round of the trace arrives within this time, so that a request always waits for one to end: the trace comes in
	// bursts, and between them there would be no KV.
	allAtOnce = 100 * time.Millisecond
)

// referenceScene has worlds of the reference engine, of one model, under the demo's load.
func referenceScene(t *testing.T, oneNode bool, model func(*testing.T, harness.Options) *harness.World) *scene {
	t.Helper()
	const pods = 4
	trace := worlds.NewTrace(t, 9, allAtOnce)
	trace.MaxAnswer = answer
	start := func(t *testing.T) *harness.World {
		t.Helper()
		return model(t, harness.Options{Pods: slices.Repeat([]int{1}, pods), Restart: true, FaultDirs: true, LeastStep: leastStep, OneNode: oneNode, Hangs: !worlds.IsCI()})
	}
	s := &scene{report: "report.json", transitions: transitions, start: start, pods: pods, rest: four, source: trace, judge: newReference(t, model),
		settle: 90 * time.Second /* longer than gateways avoid a rank whose sessions broke */, reach: 8 * time.Second, most: 4 /* of 10: on three ranks, or with copies on four */, slower: 1, tries: 4, oneNode: oneNode}
	if worlds.IsCI() { // independent of the clock: no process hangs in these cells
		s.settle, s.reach, s.tries, s.slower = worlds.Hang, worlds.Hang/6, 6, math.Inf(1)
	}
	return s
}
