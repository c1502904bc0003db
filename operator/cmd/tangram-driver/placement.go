package main

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/load"
)

const placementHelp = "JSON file with the placement of whole experts and their replicas, as [layer][rank][experts]: one list per MoE layer and rank, " +
	"in any order"

// readPlacement reads a --placement file and checks it as far as possible without the model. The planner checks the
// rest; see blame.
func readPlacement(path string, ranks int, m layout.Mode) (out [][][]uint32, err error) {
	defer func() {
		if err != nil {
			out, err = nil, fmt.Errorf("--placement %s: %w", path, err)
		}
	}()
	if m != layout.Expert {
		return nil, fmt.Errorf("a placement cannot be used with --mode %v; want --mode %v", m, layout.Expert)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // only read
	lists, err := load.ReadPlacementLists(file, load.Options{})
	if err != nil {
		return nil, err
	}
	if n := len(lists[0]); n != ranks { // all layers have the same number
		return nil, fmt.Errorf("placement has %d ranks; want %d, the value of --ranks", n, ranks)
	}
	out = make([][][]uint32, len(lists))
	for l, byRank := range lists {
		out[l] = make([][]uint32, ranks)
		for r, experts := range byRank {
			for _, e := range experts {
				out[l][r] = append(out[l][r], uint32(e))
			}
			slices.Sort(out[l][r])
		}
	}
	return out, nil
}

// blame names the file in the error for a placement that does not suit the model. Nothing has changed at that time.
func blame(path string, err error) error {
	var bad *layout.BadPlacement
	if errors.As(err, &bad) {
		return usageError{fmt.Errorf("--placement %s: %w", path, err)}
	}
	return err
}
