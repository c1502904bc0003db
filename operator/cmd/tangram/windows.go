package main

import (
	"fmt"
	"io"
	"slices"

	"tangram.dev/operator/internal/plancli"
	"tangram.dev/operator/pkg/load"
)

// windows of a load file: `every` entries form one window, and layers before firstLayer are dropped.
type windows struct{ every, firstLayer int }

// read returns the load to plan for, its description, and the placement if the file has one.
func (w windows) read(path, format, demand string, stdin io.Reader, notes io.Writer) (loads [][]float64, lies load.Placement, said string, err error) {
	t, lies, err := plancli.ReadLoads(path, format, load.Options{}, stdin)
	if err != nil {
		return nil, nil, "", err
	}
	if n := len(t.Windows[0]); w.firstLayer != 0 {
		if w.firstLayer < 0 || w.firstLayer >= n {
			return nil, nil, "", fmt.Errorf("--first-layer is %d; want 0 to %d, the layers of %s", w.firstLayer, n-1, path)
		}
		var layers []int
		for l := w.firstLayer; l < n; l++ {
			layers = append(layers, l)
		}
		if t, err = t.Select(layers); err != nil {
			return nil, nil, "", err
		}
		if lies != nil {
			lies = lies[w.firstLayer:]
		}
	}
	if idle := idleInFront(t); idle > 0 {
		first, layers := w.firstLayer, fmt.Sprintf("layer %d has", w.firstLayer)
		if idle > 1 {
			layers = fmt.Sprintf("layers %d..%d have", first, first+idle-1)
		}
		_, _ = fmt.Fprintf(notes, "%s: %s no load in any window; if these are dense layers, set --first-layer %d\n", path, layers, first+idle)
	}
	if w.every != 1 {
		if t, err = t.Every(w.every); err != nil {
			return nil, nil, "", fmt.Errorf("--every: %w", err)
		}
	}
	if loads, said, err = plancli.Demand(t, demand); err != nil {
		return nil, nil, "", fmt.Errorf("--demand: %w", err)
	}
	return loads, lies, said, nil
}

// idleInFront returns the number of leading layers without load in any window; 0 if no layer has load.
func idleInFront(t *load.Trace) int {
	for l := range t.Windows[0] {
		for _, window := range t.Windows {
			if slices.Max(window[l]) > 0 {
				return l
			}
		}
	}
	return 0
}
