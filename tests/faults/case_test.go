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
	ranks int
	mode  string
}

var transitions = []transition{
	{"resize-up", shape{3, "Expert"}, shape{4, "Expert"}, false},
	{"resize-down", shape{4, "Expert"}, shape{3, "Expert"}, false},
	{"expert-to-tensor", shape{4, "Expert"}, shape{4, "Tensor"}, false},
	{"tensor-to-expert", shape{4, "Tensor"}, shape{4, "Expert"}, false},
	{"repair-expert", shape{4, "Expert"}, shape{4, "Expert"}, true},
	{"repair-tensor", shape{4, "Tensor"}, shape{4, "Tensor"}, true},
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
