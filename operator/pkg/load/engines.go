package load

import (
	"io"
)

// ReadVLLM reads recordings of vLLM's EPLB counters: {"load_history": [{"logical_expert_load": [layers][experts]},
// ...]}, one entry per step. It ignores other fields. Trace.Every adds up steps to windows. (`log_balancedness` of
// vLLM's --eplb-config logs only a mean and a maximum, without loads of experts, so it has nothing to read.)
func ReadVLLM(r io.Reader, o Options) (*Trace, error) {
	j, err := newJSONReader("vLLM load history", r, o)
	if err != nil {
		return nil, err
	}
	t := &Trace{}
	record := func(int) error {
		return j.object(true, map[string]func() error{"logical_expert_load": func() error {
			flat, shape, err := j.tensor(2, "layers", "experts")
			if err != nil {
				return err
			}
			return j.window(t, o, flat, shape[0], shape[1])
		}}, "logical_expert_load")
	}
	history := func() error {
		_, err := j.list(record)
		return err
	}
	if err := j.object(true, map[string]func() error{"load_history": history}, "load_history"); err != nil {
		return nil, err
	}
	return j.done(t)
}

// ReadSGLang reads the dump of SGLang's expert distribution recorder in mode `stat`: {"logical_count":
// [steps][layers][experts]}, or [layers][experts] as --init-expert-location accepts it. It ignores other fields. SGLang
// writes torch files; this converts one to JSON:
//
//	python3 -c 'import json,sys,torch; d=torch.load(sys.argv[1],weights_only=True,map_location="cpu"); json.dump({"logical_count":d["logical_count"].tolist()},open(sys.argv[2],"w"))' dump.pt dump.json
//
// A torch file is a zip of pickled objects, and reading pickles executes code, so only torch reads it. Dense layers are
// rows of zeros there: see Trace.Select.
func ReadSGLang(r io.Reader, o Options) (*Trace, error) {
	j, err := newJSONReader("SGLang expert distribution", r, o)
	if err != nil {
		return nil, err
	}
	if len(j.data) > 1 && (j.data[0] == 0x80 || string(j.data[:2]) == "PK") {
		return nil, j.fail("this is a torch file, not JSON; convert it with the line in the documentation of ReadSGLang (torch.load, then tolist)")
	}
	t := &Trace{}
	count := func() error {
		flat, shape, err := j.tensor(2, "steps", "layers", "experts")
		if err != nil {
			return err
		}
		layers, experts := shape[len(shape)-2], shape[len(shape)-1]
		for len(flat) > 0 {
			if err := j.window(t, o, flat[:layers*experts], layers, experts); err != nil {
				return err
			}
			flat = flat[layers*experts:]
		}
		return nil
	}
	if err := j.object(true, map[string]func() error{"logical_count": count}, "logical_count"); err != nil {
		return nil, err
	}
	return j.done(t)
}

// ReadSGLangMap reads SGLang's placement of experts: {"physical_to_logical_map": [layers][physical experts]},
// distributed over `ranks` ranks in order.
func ReadSGLangMap(r io.Reader, ranks int, o Options) (Placement, error) {
	j, err := newJSONReader("SGLang expert location", r, o)
	if err != nil {
		return nil, err
	}
	var p Placement
	if err := j.object(true, map[string]func() error{"physical_to_logical_map": func() (err error) {
		p, err = j.dealt(ranks)
		return err
	}}, "physical_to_logical_map"); err != nil {
		return nil, err
	}
	if err := j.end(); err != nil {
		return nil, err
	}
	return o.whole(j.format, p)
}

// ReadVLLMMap reads vLLM's physical_to_logical_map alone, [layers][physical experts], distributed over `ranks` ranks in
// order.
func ReadVLLMMap(r io.Reader, ranks int, o Options) (Placement, error) {
	j, err := newJSONReader("vLLM map of physical experts", r, o)
	if err != nil {
		return nil, err
	}
	p, err := j.dealt(ranks)
	if err != nil {
		return nil, err
	}
	if len(p) == 0 {
		return nil, j.fail("no layers; want [layer][slot] experts")
	}
	if err := j.end(); err != nil {
		return nil, err
	}
	return o.whole(j.format, p)
}

// dealt reads lists of [layer][physical expert] and cuts each into `ranks` equal parts.
func (j *jsonReader) dealt(ranks int) (p Placement, err error) {
	_, err = j.list(func(l int) error {
		var flat []int32
		n, err := j.list(func(int) error {
			e, err := j.integer(0, mostIndex)
			flat = append(flat, int32(e))
			return err
		})
		if err != nil {
			return err
		}
		if ranks < 1 || n == 0 || n%ranks != 0 {
			return j.fail("%d physical experts cannot be dealt evenly to %d ranks", n, ranks)
		}
		if l > 0 && n != ranks*len(p[0][0]) {
			return j.fail("ragged: %d physical experts, layer 0 has %d", n, ranks*len(p[0][0]))
		}
		rows := make([][]int32, ranks)
		for r := range rows {
			rows[r] = flat[r*n/ranks : (r+1)*n/ranks]
		}
		p = append(p, rows)
		return nil
	})
	return p, err
}

// window adds a window to the trace if it fits the model and the earlier windows.
func (j *jsonReader) window(t *Trace, o Options, flat []float64, layers, experts int) error {
	if err := o.shape(layers, experts); err != nil {
		return j.fail("%w", err)
	}
	if len(t.Windows) > 0 && (layers != len(t.Windows[0]) || experts != len(t.Windows[0][0])) {
		return j.fail("ragged: loads of %d layers and %d experts, the windows before have %d and %d",
			layers, experts, len(t.Windows[0]), len(t.Windows[0][0]))
	}
	t.Windows = append(t.Windows, grid(flat, layers, experts))
	return nil
}

// done checks the end of the file and that it had at least one window.
func (j *jsonReader) done(t *Trace) (*Trace, error) {
	if err := j.end(); err != nil {
		return nil, err
	}
	if len(t.Windows) == 0 {
		return nil, j.fail("no window of loads in it; record at least one")
	}
	return t, nil
}
