package load

import (
	"fmt"
	"io"
)

// Trace is recorded load: windows of tokens, oldest first.
type Trace struct {
	Windows [][][]float64 // [window][layer][expert]
	// Sources by source rank if the recording has them, [window][source rank][layer][expert]; otherwise nil. They add
	// up to Windows.
	Sources [][][][]float64
}

// Options of the loaders.
type Options struct {
	// Layers (MoE) and Experts of the model; 0: as in the file. A different number in the file is an error.
	Layers, Experts int
	// MaxBytes of the file and MaxValues (loads) in it; 0: 512 MiB and 2^26.
	MaxBytes  int64
	MaxValues int
}

const (
	defaultBytes  = 512 << 20
	defaultValues = 1 << 26
	mostIndex     = 1 << 20 // of a window, source rank, layer, expert, slot
)

func (o Options) values() int {
	if o.MaxValues > 0 {
		return o.MaxValues
	}
	return defaultValues
}

// read the whole file, up to the limit.
func (o Options) read(format string, r io.Reader) ([]byte, error) {
	limit := o.MaxBytes
	if limit <= 0 {
		limit = defaultBytes
	}
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", format, err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s: more than %d bytes; raise the limit, or record fewer windows", format, limit)
	}
	return data, nil
}

// shape checks one window of a file against the model and the first window.
func (o Options) shape(layers, experts int) error {
	switch {
	case layers == 0 || experts == 0:
		return fmt.Errorf("loads of %d layers and %d experts; at least 1 of each is needed", layers, experts)
	case o.Layers > 0 && layers != o.Layers:
		return fmt.Errorf("loads of %d layers; the model has %d MoE layers", layers, o.Layers)
	case o.Experts > 0 && experts != o.Experts:
		return fmt.Errorf("loads of %d experts per layer; the model has %d", experts, o.Experts)
	}
	return nil
}

// Select keeps only these layers, in this order. SGLang counts dense layers too, as rows of zeros.
func (t *Trace) Select(layers []int) (*Trace, error) {
	pick := func(w [][]float64) ([][]float64, error) {
		out := make([][]float64, len(layers))
		for i, l := range layers {
			if l < 0 || l >= len(w) {
				return nil, fmt.Errorf("load: layer %d is wanted; the trace has layers 0..%d", l, len(w)-1)
			}
			out[i] = w[l]
		}
		return out, nil
	}
	if len(layers) == 0 {
		return nil, fmt.Errorf("load: no layer of the trace is wanted; name at least one")
	}
	out := &Trace{}
	for _, w := range t.Windows {
		rows, err := pick(w)
		if err != nil {
			return nil, err
		}
		out.Windows = append(out.Windows, rows)
	}
	for _, sources := range t.Sources {
		var kept [][][]float64
		for _, s := range sources {
			rows, err := pick(s)
			if err != nil {
				return nil, err
			}
			kept = append(kept, rows)
		}
		out.Sources = append(out.Sources, kept)
	}
	return out, nil
}

// Every adds up every n windows to one; the last may have fewer. Engines record each step, but a placement is for
// thousands of them.
func (t *Trace) Every(n int) (*Trace, error) {
	if n < 1 {
		return nil, fmt.Errorf("load: every %d windows as one; want at least 1", n)
	}
	out := &Trace{}
	for i, w := range t.Windows {
		if i%n == 0 {
			out.Windows = append(out.Windows, zeros(w))
		}
		addTo(out.Windows[i/n], w)
	}
	for i, sources := range t.Sources {
		if i%n == 0 {
			var fresh [][][]float64
			for _, s := range sources {
				fresh = append(fresh, zeros(s))
			}
			out.Sources = append(out.Sources, fresh)
		}
		for s := range sources {
			addTo(out.Sources[i/n][s], sources[s])
		}
	}
	return out, nil
}

func zeros(like [][]float64) [][]float64 {
	out := make([][]float64, len(like))
	for l := range like {
		out[l] = make([]float64, len(like[l]))
	}
	return out
}

func addTo(sum, w [][]float64) {
	for l := range w {
		for e, v := range w[l] {
			sum[l][e] += v
		}
	}
}
