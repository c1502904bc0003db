package load

import (
	"errors"
	"fmt"
)

// ErrLate is in the error for tokens of a window that has left the ring.
var ErrLate = errors.New("the window is no longer kept")

// ErrFuture is in the error for tokens of a window that is not open yet.
var ErrFuture = errors.New("the window is not open yet")

// Extent is the size of a Windows. Memory is constant: 8 bytes times Layers times Experts times (Keep +
// Sources*KeepBySource).
type Extent struct {
	Layers, Experts int
	Keep            int // newest windows kept as sums over all source ranks, at least 1
	Sources         int // ranks that route tokens, at least 1
	// KeepBySource newest windows are also kept by source rank; at most Keep. 0: none.
	KeepBySource int
}

// Windows are sliding windows of tokens by (source rank, layer, expert), in a ring. The caller's clock determines the
// newest window; a window is only an index here. Not for concurrent use.
type Windows struct {
	extent Extent
	newest uint64
	began  bool
	sums   [][]float64 // [window % Keep][layer*Experts + expert]
	source [][]float64 // [window % KeepBySource][(rank*Layers + layer)*Experts + expert]
}

// NewWindows returns an empty Windows: the first Advance opens the first window.
func NewWindows(e Extent) (*Windows, error) {
	if e.Layers < 1 || e.Experts < 1 || e.Sources < 1 {
		return nil, fmt.Errorf("load: windows of %d layers, %d experts, %d source ranks; at least 1 of each is needed", e.Layers, e.Experts, e.Sources)
	}
	if e.Keep < 1 || e.KeepBySource < 0 || e.KeepBySource > e.Keep {
		return nil, fmt.Errorf("load: keeps %d windows, %d of them by source rank; want at least 1, and by source between 0 and that", e.Keep, e.KeepBySource)
	}
	w := &Windows{extent: e, sums: make([][]float64, e.Keep), source: make([][]float64, e.KeepBySource)}
	for i := range w.sums {
		w.sums[i] = make([]float64, e.Layers*e.Experts)
	}
	for i := range w.source {
		w.source[i] = make([]float64, e.Sources*e.Layers*e.Experts)
	}
	return w, nil
}

// Advance opens the window `index` and all windows before it; windows that leave the ring are dropped. A smaller index
// is an error, because a clock that goes back would mix windows.
func (w *Windows) Advance(index uint64) error {
	if w.began && index < w.newest {
		return fmt.Errorf("load: window %d cannot be opened, window %d is open already", index, w.newest)
	}
	if !w.began {
		w.began, w.newest = true, index
		return nil
	}
	clearNew(w.sums, w.newest, index)
	clearNew(w.source, w.newest, index)
	w.newest = index
	return nil
}

// clearNew empties the places of windows newest+1..index.
func clearNew(ring [][]float64, newest, index uint64) {
	n := uint64(len(ring))
	for i := uint64(1); i <= min(n, index-newest); i++ {
		clear(ring[(newest+i)%n])
	}
}

// Newest returns the newest open window, if any.
func (w *Windows) Newest() (uint64, bool) { return w.newest, w.began }

// Add adds the tokens that a source rank routed to the experts of a layer in a window. An error leaves the windows
// unchanged.
func (w *Windows) Add(index uint64, source, layer int, tokens []float64) error {
	e := w.extent
	switch {
	case !w.began || index > w.newest:
		return fmt.Errorf("load: window %d, newest is %d: %w", index, w.newest, ErrFuture)
	case w.newest-index >= uint64(e.Keep):
		return fmt.Errorf("load: window %d, newest is %d and %d are kept: %w", index, w.newest, e.Keep, ErrLate)
	case source < 0 || source >= e.Sources:
		return fmt.Errorf("load: source rank %d; there are ranks 0..%d", source, e.Sources-1)
	case layer < 0 || layer >= e.Layers:
		return fmt.Errorf("load: source rank %d: layer %d; there are MoE layers 0..%d", source, layer, e.Layers-1)
	case len(tokens) != e.Experts:
		return fmt.Errorf("load: source rank %d, layer %d: tokens of %d experts; the model has %d", source, layer, len(tokens), e.Experts)
	}
	sums := w.sums[index%uint64(e.Keep)][layer*e.Experts:][:e.Experts]
	for x, v := range tokens {
		if err := checkLoad(v); err != nil {
			return fmt.Errorf("load: source rank %d, layer %d, expert %d: %w", source, layer, x, err)
		}
		if err := checkLoad(sums[x] + v); err != nil {
			return fmt.Errorf("load: source rank %d, layer %d, expert %d, with what the window holds: %w", source, layer, x, err)
		}
	}
	for x, v := range tokens {
		sums[x] += v
	}
	if w.newest-index < uint64(e.KeepBySource) {
		by := w.source[index%uint64(e.KeepBySource)][(source*e.Layers+layer)*e.Experts:][:e.Experts]
		for x, v := range tokens {
			by[x] += v
		}
	}
	return nil
}

// At returns a copy of one window, [layer][expert]; false if it is not kept or not open.
func (w *Windows) At(index uint64) ([][]float64, bool) {
	if !w.began || index > w.newest || w.newest-index >= uint64(w.extent.Keep) {
		return nil, false
	}
	return w.rows(w.sums[index%uint64(w.extent.Keep)]), true
}

// Sum returns the sum of the last n windows (the open one is the last), [layer][expert]; n is limited to the kept
// windows.
func (w *Windows) Sum(n int) [][]float64 {
	return w.rows(total(w.sums, n, w.extent.Layers*w.extent.Experts, w.newest))
}

// BySource returns the sum of the last n windows by source, [rank][layer][expert]; nil if KeepBySource is 0.
func (w *Windows) BySource(n int) [][][]float64 {
	if len(w.source) == 0 {
		return nil
	}
	e := w.extent
	sum := total(w.source, n, e.Sources*e.Layers*e.Experts, w.newest)
	out := make([][][]float64, e.Sources)
	for r := range out {
		out[r] = w.rows(sum[r*e.Layers*e.Experts:])
	}
	return out
}

func total(ring [][]float64, n, size int, newest uint64) []float64 {
	out := make([]float64, size)
	for i := range min(max(n, 0), len(ring)) {
		// In the first round of the ring, older places are still empty and add nothing.
		at := (newest%uint64(len(ring)) + uint64(len(ring)-i)) % uint64(len(ring))
		for x, v := range ring[at] {
			out[x] += v
		}
	}
	return out
}

func (w *Windows) rows(flat []float64) [][]float64 {
	out := make([][]float64, w.extent.Layers)
	for l := range out {
		out[l] = append([]float64(nil), flat[l*w.extent.Experts:][:w.extent.Experts]...)
	}
	return out
}
