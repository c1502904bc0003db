package faults

import (
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// shape is the shape of a case's world.
type shape struct {
	ranks  int
	mode   string
	placed *placement // nil: one replica of each expert, anywhere
}

// placement has the experts by rank, for every layer.
type placement [][]uint32

// placed has two experts on two ranks each, and the others in no order.
var placed = &placement{{0, 4, 5}, {0, 1, 3}, {2, 6, 9}, {6, 7, 8}}

// everyLayer repeats the placement for the layers of the tiny model.
func (p placement) everyLayer() [][][]uint32 { return [][][]uint32{p, p, p} }

var (
	three, four = shape{3, "ExpertParallel", nil}, shape{4, "ExpertParallel", nil}
	tensor      = shape{4, "TensorParallel", nil}
	copies      = shape{4, "ExpertParallel", placed}
)

// first is an earlier fault at pod 0, whose consequences the case tests. Empty kind: none.
type first struct {
	kind string
	at   string // while pod 0 is held at this point of the transition; empty: instead of a transition
}

// transition is in progress when the fault of a case strikes.
type transition struct {
	name     string
	from, to shape
	first    first
	movesKV  bool // homes of requests change, or the split of their heads: KV moves
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
	// An engine that restarts, and a rank that is removed, released, and joins again.
	{"return", four, four, first{kind: "engine"}, false},
	{"left-out", four, four, first{kind: "cut"}, false},
	// The second of two faults: while the first one is aborted, or fenced and repaired.
	{"abort", four, tensor, first{"error", "stage.before_verify"}, false},
	{"abort-join", three, four, first{"error", "prepare.after"}, false},
	{"fence-stay", four, tensor, first{"pod", "stage.after"}, false},
	{"fence-forward", four, tensor, first{"pod", "engine.flip_commit"}, false},
	{"fence-leave", four, three, first{"pod", "permit.after_arm"}, false},
}

// Kinds of faults. While a process is held at the point:
var (
	// its engine, its agent, or both are killed; the keeper is killed; its link to another rank is cut for a moment
	atThePoint = []string{"engine", "agent", "pod", "operator", "link"}
	// processes of another pod are killed; a process is stopped for less and for more than its timeout; a link is cut
	// until a rank is removed; the process is slow
	elsewhere = []string{"other-engine", "other-agent", "other-pod", "engine-pause", "agent-pause", "engine-stop", "agent-stop", "cut", "slow"}
	// the point fails, or a byte is corrupted there, where supported
	atSome = []string{"error", "corrupt"}
	// At the fetch of KV in a flip: an engine is held before its fetch while one of its source pods, with its agent, is
	// stopped. All others wait for that engine then, so its fetch must fail before another rank suspects it.
	ofSources = []string{"source-stop"}
)

// beforePulls is the point at which an engine knows the KV that it must fetch.
const beforePulls = "engine.flip_manifest"

// pullsFromAll: the split of heads changes, so each rank fetches KV from every other one.
func (t transition) pullsFromAll() bool {
	return t.first.kind == "" && t.from.mode != t.to.mode && t.from.ranks == t.to.ranks
}

// fault is one cell of the matrix.
type fault struct {
	point, kind string
	transition  transition
	oneNode     bool // agents map each other's memory instead of sending
}

func (f fault) name() string { return f.transition.name + "/" + f.point + "/" + f.kind }

// draw returns a number that depends only on the case, for choices within it.
func (f fault) draw(n int) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(f.name())) // a hash never fails
	return int(h.Sum32() % uint32(n))
}

// matrix returns all cells of some transitions. points are the points that each transition passes (expected.txt), takes
// the further actions of a point (--list-fault-points). The kinds of `elsewhere` alternate over the points, so that
// each occurs in every transition; so do those of `atThePoint` if the fault is the second one.
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

// onOneNode returns the cells of worlds whose agents map each other's memory: no bytes are sent, so no KV can be
// corrupted in transit (docs/architecture.md, 8; the hashes of weights are checked there as well).
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

// points lists the names of a directory's files with this ending.
func points(dir, ending string) []string {
	files, err := filepath.Glob(filepath.Join(dir, "*"+ending))
	if err != nil {
		panic(err) // the pattern is constant
	}
	var out []string
	for _, f := range files {
		out = append(out, strings.TrimSuffix(filepath.Base(f), ending))
	}
	slices.Sort(out)
	return out
}

// reset clears a pod's directory: no point is armed, cut or recorded.
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

// remove removes a directory's files with this ending.
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
