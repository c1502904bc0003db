package faults

import (
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// shape of the world of a case.
type shape struct {
	ranks  int
	mode   string
	placed *placement // nil: one copy of each expert, wherever
}

// placement of every layer: experts by rank.
type placement [][]uint32

// placed: with two experts on two ranks each, and others in no order.
var placed = &placement{{0, 4, 5}, {0, 1, 3}, {2, 6, 9}, {6, 7, 8}}

// everyLayer of the tiny model.
func (p placement) everyLayer() [][][]uint32 { return [][][]uint32{p, p, p} }

var (
	three, four = shape{3, "ExpertParallel", nil}, shape{4, "ExpertParallel", nil}
	tensor      = shape{4, "TensorParallel", nil}
	copies      = shape{4, "ExpertParallel", placed}
)

// first is what strikes pod 0 before: the case is about what comes of it. Empty kind: nothing.
type first struct {
	kind string
	at   string // while pod 0 stands at this point of the transition; empty: instead of a transition
}

// transition that is under way when the fault of a case strikes.
type transition struct {
	name     string
	from, to shape
	first    first
	movesKV  bool // homes of requests change, or their heads are cut otherwise: KV moves
}

var transitions = []transition{
	{"resize-up", three, four, first{}, false},
	{"resize-down", four, three, first{}, true},
	{"expert-to-tensor", four, tensor, first{}, true},
	{"tensor-to-expert", tensor, four, first{}, true},
	{"rebalance", four, copies, first{}, false},
	{"repair-expert", four, four, first{kind: "pod"}, false},
	{"repair-tensor", tensor, tensor, first{kind: "pod"}, false},
	{"repair-copies", copies, copies, first{kind: "pod"}, false},
	// An engine that comes back, and a rank that is left out, released, and joins again.
	{"return", four, four, first{kind: "engine"}, false},
	{"left-out", four, four, first{kind: "cut"}, false},
	// The second fault of two: while the first is aborted, or fenced and repaired.
	{"abort", four, tensor, first{"error", "stage.before_verify"}, false},
	{"abort-join", three, four, first{"error", "prepare.after"}, false},
	{"fence-stay", four, tensor, first{"pod", "stage.after"}, false},
	{"fence-forward", four, tensor, first{"pod", "engine.flip_commit"}, false},
	{"fence-leave", four, three, first{"pod", "permit.after_arm"}, false},
}

// Kinds of faults. While a process stands at the point:
var (
	// its engine, its agent, or both are killed; the keeper is; its link with another rank is cut for a moment
	atThePoint = []string{"engine", "agent", "pod", "operator", "link"}
	// those of another pod are; a process is stopped for less and for more than it takes to be missed; a link
	// is cut until a rank was left out; it is slow
	elsewhere = []string{"other-engine", "other-agent", "other-pod", "engine-pause", "agent-pause", "engine-stop", "agent-stop", "cut", "slow"}
	// the point fails, or a byte goes wrong there, where it can
	atSome = []string{"error", "corrupt"}
	// Where a flip pulls KV: an engine stands before its pull while a pod from which it is to pull is stopped, with its agent. All others
	// wait for that engine then, whose pull has to fail before anybody suspects it.
	ofSources = []string{"source-stop"}
)

// beforePulls is where an engine stands that has a plan of what KV it is to pull.
const beforePulls = "engine.flip_manifest"

// pullsFromAll: heads are cut otherwise, so that each rank pulls KV from each other one.
func (t transition) pullsFromAll() bool {
	return t.first.kind == "" && t.from.mode != t.to.mode && t.from.ranks == t.to.ranks
}

// fault is one cell of the matrix.
type fault struct {
	point, kind string
	transition  transition
	oneNode     bool // agents map each other's memory, instead of sending
}

func (f fault) name() string { return f.transition.name + "/" + f.point + "/" + f.kind }

// draw is a number that belongs to the case, for choices within it.
func (f fault) draw(n int) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(f.name())) // a hash never fails
	return int(h.Sum32() % uint32(n))
}

// matrix of all cells of some transitions. points by transition are what it passes (expected.txt), takes what a point can do besides
// (--list-fault-points). The kinds of `elsewhere` take turns over the points, so that each meets every transition; so do
// those of `atThePoint` where the fault is the second one.
func matrix(transitions []transition, points map[string][]string, takes map[string][]string) []fault {
	var out []fault
	for i, tr := range transitions {
		for j, point := range points[tr.name] {
			var kinds []string
			if tr.first.kind == "" || tr.first.kind == "pod" && tr.first.at == "" {
				kinds = slices.Clone(atThePoint)
			} else {
				for k := range 2 {
					kinds = append(kinds, atThePoint[(i+2*j+k)%(len(atThePoint)-1)])
				}
			}
			kinds = append(kinds, elsewhere[(i+j)%len(elsewhere)])
			for _, kind := range atSome {
				if slices.Contains(takes[point], kind) {
					kinds = append(kinds, kind)
				}
			}
			if tr.pullsFromAll() && point == beforePulls {
				kinds = append(kinds, ofSources...)
			}
			for _, kind := range kinds {
				out = append(out, fault{point: point, kind: kind, transition: tr})
			}
		}
	}
	return out
}

// onOneNode gives the cells of worlds whose agents map each other's memory: nobody sends, and no KV is on a way where it could be
// spoiled (docs/architecture.md, 8; what is read of weights is held to its hash there as well).
func onOneNode(cells []fault) []fault {
	var out []fault
	for _, f := range cells {
		if f.point == "data.before_send" || f.point == "kv.before_pull" && f.kind == "corrupt" {
			continue
		}
		f.oneNode = true
		out = append(out, f)
	}
	return out
}

// points are what a directory's files with this ending name.
func points(dir, ending string) []string {
	files, err := filepath.Glob(filepath.Join(dir, "*"+ending))
	if err != nil {
		panic(err) // a pattern of ours
	}
	var out []string
	for _, f := range files {
		out = append(out, strings.TrimSuffix(filepath.Base(f), ending))
	}
	slices.Sort(out)
	return out
}

// reset a pod's directory: nothing is armed, cut or seen.
func reset(dir string) error {
	for _, ending := range []string{".armed", ".hit", ".seen"} {
		if err := remove(dir, ending); err != nil {
			return err
		}
	}
	if err := os.Remove(filepath.Join(dir, "cut")); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

// remove a directory's files with this ending.
func remove(dir, ending string) error {
	for _, point := range points(dir, ending) {
		if err := os.Remove(filepath.Join(dir, point+ending)); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("reset: %w", err)
		}
	}
	return nil
}

func touch(path string) error { return os.WriteFile(path, nil, 0o600) }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
