package faults

import (
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// transition that is under way when somebody dies.
type transition struct {
	name     string
	from, to shape
	dies     bool // a rank is killed first: the repair is under way
}

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
	three, four = shape{3, "Expert", nil}, shape{4, "Expert", nil}
	tensor      = shape{4, "Tensor", nil}
	copies      = shape{4, "Expert", placed}
)

var transitions = []transition{
	{"resize-up", three, four, false},
	{"resize-down", four, three, false},
	{"expert-to-tensor", four, tensor, false},
	{"tensor-to-expert", tensor, four, false},
	{"rebalance", four, copies, false},
	{"repair-expert", four, four, true},
	{"repair-tensor", tensor, tensor, true},
	{"repair-copies", copies, copies, true},
}

var victims = []string{"engine", "agent", "pod", "operator", "link"}

// fault is one cell of the matrix.
type fault struct {
	point, victim string
	transition    transition
}

func (f fault) name() string { return f.transition.name + "/" + f.point + "/" + f.victim }

// draw is a number that belongs to the case, for choices within it.
func (f fault) draw(n int) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(f.name())) // a hash never fails
	return int(h.Sum32() % uint32(n))
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
		for _, point := range points(dir, ending) {
			if err := os.Remove(filepath.Join(dir, point+ending)); err != nil && !os.IsNotExist(err) {
				return fmt.Errorf("reset: %w", err)
			}
		}
	}
	if err := os.Remove(filepath.Join(dir, "cut")); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}
