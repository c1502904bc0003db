package geometry

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// configBytes is the most that a config.json may have.
const configBytes = 1 << 20

// FromConfig reads the config.json of a checkpoint as the agent does (agent/loader/config.h), with the rows of a granule.
// The agent takes dtype and dense weights from the tensors, which are not looked at here: the dtype is the one that the
// file declares, and dense_bytes stays 0.
func FromConfig(r io.Reader, granuleRows uint32) (*tangramv1.Geometry, error) {
	var fields map[string]json.RawMessage
	if err := json.NewDecoder(io.LimitReader(r, configBytes)).Decode(&fields); err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	var family string
	if err := json.Unmarshal(fields["model_type"], &family); err != nil || family != "qwen3_moe" {
		return nil, fmt.Errorf("config.json: model_type %s is not supported (qwen3_moe)", fields["model_type"])
	}
	var err error
	number := func(names ...string) uint32 {
		for _, name := range names {
			raw, there := fields[name]
			if !there {
				continue
			}
			var v uint32
			if json.Unmarshal(raw, &v) != nil || v == 0 || v > 1<<24 {
				err = fmt.Errorf("config.json: %s must be a positive number, is %s", name, raw)
			}
			return v
		}
		err = fmt.Errorf("config.json: %s is missing", names[0])
		return 0
	}
	g := &tangramv1.Geometry{Model: family, Layers: number("num_hidden_layers"), Hidden: number("hidden_size"), MoeInner: number("moe_intermediate_size"),
		Experts: number("num_experts", "num_local_experts"), TopK: number("num_experts_per_tok"), QueryHeads: number("num_attention_heads"),
		KvHeads: number("num_key_value_heads"), HeadDim: number("head_dim"), GranuleRows: granuleRows,
		SlabFormat: tangramv1.SlabFormat_SLAB_FORMAT_GRANULE_MAJOR, PageBytes: PublicPageBytes}
	step := uint32(1)
	if _, there := fields["decoder_sparse_step"]; there {
		step = number("decoder_sparse_step")
	}
	if err != nil {
		return nil, err
	}
	if g.TopK > g.Experts {
		return nil, fmt.Errorf("config.json: num_experts_per_tok = %d of %d experts", g.TopK, g.Experts)
	}
	var dense []uint32
	if raw, there := fields["mlp_only_layers"]; there {
		if json.Unmarshal(raw, &dense) != nil {
			return nil, fmt.Errorf("config.json: mlp_only_layers is no list of layers")
		}
	}
	if g.Layers > 4096 {
		return nil, fmt.Errorf("config.json: num_hidden_layers = %d, must be 1..4096", g.Layers)
	}
	for l := range g.Layers {
		if (l+1)%step == 0 && !slices.Contains(dense, l) {
			g.MoeLayers = append(g.MoeLayers, l)
		}
	}
	raw, there := fields["dtype"]
	if !there {
		raw = fields["torch_dtype"]
	}
	var dtype string
	if len(raw) > 0 && json.Unmarshal(raw, &dtype) != nil {
		return nil, fmt.Errorf("config.json: dtype %s is no name", raw)
	}
	element := uint64(2)
	switch dtype {
	case "bfloat16":
		g.Dtype = tangramv1.DType_DTYPE_BF16
	case "float32":
		g.Dtype, element = tangramv1.DType_DTYPE_F32, 4
	default:
		return nil, fmt.Errorf("config.json: dtype %q is not supported (bfloat16, float32)", dtype)
	}
	g.GranuleBytes = 3 * uint64(granuleRows) * uint64(g.Hidden) * element
	g.KvHeadTokenBytes = uint64(g.HeadDim) * 2 * 4
	return g, nil
}
