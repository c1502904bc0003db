package load

import (
	"fmt"
	"io"
	"strconv"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// ReadAscendMap reads vllm-ascend's expert_map.json (`expert_map_path`,
// `expert_map_record_path`): {"moe_layer_count", "layer_list": [{"layer_id",
// "device_count", "device_list": [{"device_id", "device_expert": [...]}]}]}. Layers and
// devices may come in any order, each once.
func ReadAscendMap(r io.Reader, o Options) (Placement, error) {
	j, err := newJSONReader("Ascend expert map", r, o)
	if err != nil {
		return nil, err
	}
	var layers [][][]int32
	var ids []int
	want := -1
	err = j.object(true, map[string]func() error{
		"moe_layer_count": func() (err error) { want, err = j.integer(1, mostIndex); return err },
		"layer_list": func() error {
			_, err := j.list(func(int) error {
				id, rows, err := j.ascendLayer()
				layers, ids = append(layers, rows), append(ids, id)
				return err
			})
			return err
		},
	}, "moe_layer_count", "layer_list")
	if err != nil {
		return nil, err
	}
	if len(layers) != want {
		return nil, j.fail("moe_layer_count says %d, layer_list has %d", want, len(layers))
	}
	p := make(Placement, len(layers))
	for i, at := range ids {
		if at >= len(p) {
			return nil, j.fail("layer_id %d; with %d layers they are 0..%d", at, len(p), len(p)-1)
		}
		if p[at] != nil {
			return nil, j.fail("layer_id %d is given twice", at)
		}
		p[at] = layers[i]
	}
	for l := range p {
		if len(p[l]) != len(p[0]) {
			return nil, j.fail("layer %d is on %d devices, layer 0 on %d", l, len(p[l]), len(p[0]))
		}
	}
	if err := j.end(); err != nil {
		return nil, err
	}
	return o.whole(j.format, p)
}

func (j *jsonReader) ascendLayer() (id int, ranks [][]int32, err error) {
	var devices [][]int32
	var ids []int
	count := -1
	err = j.object(true, map[string]func() error{
		"layer_id":     func() (err error) { id, err = j.integer(0, mostIndex); return err },
		"device_count": func() (err error) { count, err = j.integer(1, mostIndex); return err },
		"device_list": func() error {
			_, err := j.list(func(int) error {
				var device int
				slots := []int32{}
				err := j.object(true, map[string]func() error{
					"device_id": func() (err error) { device, err = j.integer(0, mostIndex); return err },
					"device_expert": func() error {
						_, err := j.list(func(int) error {
							e, err := j.integer(0, mostIndex)
							slots = append(slots, int32(e))
							return err
						})
						return err
					},
				}, "device_id", "device_expert")
				devices, ids = append(devices, slots), append(ids, device)
				return err
			})
			return err
		},
	}, "layer_id", "device_count", "device_list")
	if err != nil {
		return 0, nil, err
	}
	if count != len(devices) {
		return 0, nil, j.fail("device_count says %d, device_list has %d", count, len(devices))
	}
	ranks = make([][]int32, count)
	for i, at := range ids {
		if at >= count {
			return 0, nil, j.fail("device_id %d; with %d devices they are 0..%d", at, count, count-1)
		}
		if ranks[at] != nil {
			return 0, nil, j.fail("device_id %d is given twice", at)
		}
		ranks[at] = devices[i]
	}
	return id, ranks, nil
}

// whole returns the placement if each layer holds each expert of the model. Without Options.Experts, the highest expert
// of any layer is the last.
func (o Options) whole(format string, p Placement) (Placement, error) {
	if o.Layers > 0 && len(p) != o.Layers {
		return nil, fmt.Errorf("%s: %d layers; the model has %d MoE layers", format, len(p), o.Layers)
	}
	last, slots := int32(-1), 0
	for _, layer := range p {
		for _, rank := range layer {
			slots += len(rank)
			for _, e := range rank {
				last = max(last, e)
			}
		}
	}
	experts := int(last) + 1
	if o.Experts > 0 {
		if experts > o.Experts {
			return nil, fmt.Errorf("%s: expert %d; the model has experts 0..%d", format, last, o.Experts-1)
		}
		experts = o.Experts
	}
	if experts > slots || experts == 0 {
		return nil, fmt.Errorf("%s: %d slots in all %d layers; %d experts do not fit, so the map has holes", format, slots, len(p), experts)
	}
	held := make([]int, experts) // 1 + the last layer that holds it
	for l, layer := range p {
		for _, rank := range layer {
			for _, e := range rank {
				if e != Empty {
					held[e] = l + 1
				}
			}
		}
		for e, at := range held {
			if at != l+1 {
				return nil, fmt.Errorf("%s: layer %d: expert %d of %d has no slot on any rank", format, l, e, experts)
			}
		}
	}
	return p, nil
}

// AscendScrape is vllm-ascend's metrics at one time.
type AscendScrape struct {
	Placement Placement
	Tokens    [][][]float64 // since the start of the engine, [layer][rank][slot]
}

const (
	ascendHeat  = "vllm:phy_expert_heat_total" // counter: rank, layer, phy_expert_id (slot)
	ascendHeat0 = "vllm:phy_expert_heat"       // the same before the client added _total
	ascendMap   = "vllm:phy2log"               // gauge, 1 if current: the same and log_expert_id
)

// ReadAscendMetrics reads the text of vllm-ascend's /metrics, in which that engine reports loads by slot, and the
// expert of each slot.
func ReadAscendMetrics(r io.Reader, o Options) (*AscendScrape, error) {
	const format = "Ascend metrics"
	parser := expfmt.NewTextParser(model.UTF8Validation)
	limit := o.MaxBytes
	if limit <= 0 {
		limit = defaultBytes
	}
	bounded := &io.LimitedReader{R: r, N: limit + 1}
	families, err := parser.TextToMetricFamilies(bounded)
	if bounded.N <= 0 {
		return nil, fmt.Errorf("%s: more than %d bytes; raise the limit", format, limit)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", format, err)
	}
	where, err := slotsOf(families[ascendMap], ascendMap, func(m *dto.Metric) (float64, bool, error) {
		if value(m) != 1 {
			return 0, false, nil // an earlier expert of the slot
		}
		e, err := index(m, "log_expert_id")
		return float64(e), true, err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", format, err)
	}
	name := ascendHeat
	if families[name] == nil {
		name = ascendHeat0
	}
	heat, err := slotsOf(families[name], name, func(m *dto.Metric) (float64, bool, error) {
		return value(m), true, checkLoad(value(m))
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", format, err)
	}
	out := &AscendScrape{Tokens: heat}
	for l, layer := range where {
		if l >= len(heat) || len(layer) != len(heat[l]) {
			return nil, fmt.Errorf("%s: layer %d: %s and %s are not of the same ranks", format, l, ascendMap, name)
		}
		ranks := make([][]int32, len(layer))
		for r, slots := range layer {
			if len(slots) != len(heat[l][r]) {
				return nil, fmt.Errorf("%s: layer %d, rank %d: %s has %d slots, %s has %d", format, l, r, ascendMap, len(slots), name, len(heat[l][r]))
			}
			for _, e := range slots {
				ranks[r] = append(ranks[r], int32(e))
			}
		}
		out.Placement = append(out.Placement, ranks)
	}
	if len(heat) != len(where) {
		return nil, fmt.Errorf("%s: %s has %d layers, %s has %d", format, ascendMap, len(where), name, len(heat))
	}
	if _, err := o.whole(format, out.Placement); err != nil {
		return nil, err
	}
	return out, nil
}

func value(m *dto.Metric) float64 {
	switch {
	case m.Counter != nil:
		return m.Counter.GetValue()
	case m.Gauge != nil:
		return m.Gauge.GetValue()
	}
	return m.Untyped.GetValue()
}

func index(m *dto.Metric, label string) (int, error) {
	for _, pair := range m.Label {
		if pair.GetName() == label {
			v, err := strconv.Atoi(pair.GetValue())
			if err != nil || v < 0 || v > mostIndex {
				return 0, fmt.Errorf("label %s is %q; want a whole number in 0..%d", label, pair.GetValue(), mostIndex)
			}
			return v, nil
		}
	}
	return 0, fmt.Errorf("label %s is missing", label)
}

// slotsOf arranges a family by [layer][rank][slot], and rejects holes.
func slotsOf(family *dto.MetricFamily, name string, of func(*dto.Metric) (float64, bool, error)) ([][][]float64, error) {
	if family == nil {
		return nil, fmt.Errorf("metric %s is missing; is dynamic EPLB on in the engine?", name)
	}
	found := map[[3]int]float64{}
	size := [3]int{}
	slots := map[[2]int]int{}
	ranks := map[int]int{}
	for _, m := range family.Metric {
		var at [3]int
		for i, label := range []string{"layer", "rank", "phy_expert_id"} {
			v, err := index(m, label)
			if err != nil {
				return nil, fmt.Errorf("metric %s: %w", name, err)
			}
			at[i] = v
		}
		v, use, err := of(m)
		if err != nil {
			return nil, fmt.Errorf("metric %s: layer %d, rank %d, slot %d: %w", name, at[0], at[1], at[2], err)
		}
		if !use {
			continue
		}
		if _, ok := found[at]; ok {
			return nil, fmt.Errorf("metric %s: layer %d, rank %d, slot %d is given twice", name, at[0], at[1], at[2])
		}
		found[at] = v
		size[0] = max(size[0], at[0]+1)
		ranks[at[0]] = max(ranks[at[0]], at[1]+1)
		slots[[2]int{at[0], at[1]}] = max(slots[[2]int{at[0], at[1]}], at[2]+1)
	}
	// Sizes come from labels and may be arbitrarily large. A hole is found within as many steps as there are samples,
	// before anything behind it is allocated.
	var out [][][]float64
	for l := range size[0] {
		if ranks[l] == 0 {
			return nil, fmt.Errorf("metric %s: layer %d is missing, layer %d is not", name, l, size[0]-1)
		}
		var layer [][]float64
		for r := range ranks[l] {
			var row []float64
			if slots[[2]int{l, r}] == 0 {
				return nil, fmt.Errorf("metric %s: layer %d: rank %d is missing, rank %d is not", name, l, r, ranks[l]-1)
			}
			for s := range slots[[2]int{l, r}] {
				v, ok := found[[3]int{l, r, s}]
				if !ok {
					return nil, fmt.Errorf("metric %s: layer %d, rank %d: slot %d is missing, slot %d is not", name, l, r, s, slots[[2]int{l, r}]-1)
				}
				row = append(row, v)
			}
			layer = append(layer, row)
		}
		out = append(out, layer)
	}
	return out, nil
}

// Since returns the tokens since an earlier scrape of the same engine, by [layer][expert]. No slot may have changed its
// expert in between, because its tokens could not be attributed.
func (a *AscendScrape) Since(before *AscendScrape) ([][]float64, error) {
	if len(a.Placement) != len(before.Placement) || len(a.Placement) == 0 {
		return nil, fmt.Errorf("load: scrapes of %d and of %d layers are not of one engine", len(before.Placement), len(a.Placement))
	}
	experts := 0
	for _, rank := range a.Placement[0] {
		for _, e := range rank {
			experts = max(experts, int(e)+1)
		}
	}
	out := make([][]float64, len(a.Placement))
	for l, ranks := range a.Placement {
		out[l] = make([]float64, experts)
		if len(ranks) != len(before.Placement[l]) {
			return nil, fmt.Errorf("load: layer %d: scrapes of %d and of %d ranks are not of one engine", l, len(before.Placement[l]), len(ranks))
		}
		for r, slots := range ranks {
			if len(slots) != len(before.Placement[l][r]) {
				return nil, fmt.Errorf("load: layer %d, rank %d: %d slots before, %d now", l, r, len(before.Placement[l][r]), len(slots))
			}
			for s, e := range slots {
				if was := before.Placement[l][r][s]; was != e {
					return nil, fmt.Errorf("load: layer %d, rank %d, slot %d held expert %d and holds %d: scrape again and compare scrapes between rebalances", l, r, s, was, e)
				}
				d := a.Tokens[l][r][s] - before.Tokens[l][r][s]
				if d < 0 {
					return nil, fmt.Errorf("load: layer %d, rank %d, slot %d: its counter went from %v back to %v; the engine restarted between the scrapes",
						l, r, s, before.Tokens[l][r][s], a.Tokens[l][r][s])
				}
				out[l][e] += d
			}
		}
	}
	return out, nil
}
