package geometry

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// kind is how a family specifies which layers have experts, and the size of a head.
type kind int

const (
	allLayers    kind = iota // experts in every layer
	bySteps                  // every decoder_sparse_step-th layer, except those in mlp_only_layers
	behind                   // every moe_layer_freq-th layer from first_k_dense_replace on
	listedLayers             // the layers in moe_layers, or every interleave_moe_layer_step-th layer

	told    // head_dim is required
	divided // head_dim, or hidden_size / num_attention_heads
	latent  // kv_lora_rank and qk_rope_head_dim
)

// family describes a model family: the field names of its config.json, as in agent/loader/config.cc and styles.cc.
type family struct {
	model, inside, inner, experts string
	moe, heads                    kind
	dense                         uint32 // first_k_dense_replace if it is missing, as in transformers
	fp8                           bool   // block FP8 is also supported
	bias                          bool   // bias: of gate and up in the granules, of down in the tail
}

const (
	moeInner    = "moe_intermediate_size"
	plainInner  = "intermediate_size"
	scaleBlock  = 128
	mostLayers  = 4096
	scaleBytes  = 4 // F32; the agent uses the type of the tensors
	lfsPointer  = "version https://git-lfs.github.com/spec/"
	kvPageFloat = 4 // bytes of a number in the KV pages of the reference engine
)

var families = []family{
	{model: "qwen3_moe", inner: moeInner, experts: "num_experts", moe: bySteps, heads: divided, fp8: true},
	{model: "gpt_oss", inner: plainInner, experts: "num_local_experts", moe: allLayers, heads: told, bias: true},
	{model: "mixtral", inner: plainInner, experts: "num_local_experts", moe: allLayers, heads: divided},
	{model: "deepseek_v2", inner: moeInner, experts: "n_routed_experts", moe: behind, heads: latent},
	{model: "deepseek_v3", inner: moeInner, experts: "n_routed_experts", moe: behind, heads: latent, dense: 3, fp8: true},
	{model: "glm4_moe", inner: moeInner, experts: "n_routed_experts", moe: behind, heads: divided, dense: 1},
	{model: "llama4_text", inner: plainInner, experts: "num_local_experts", moe: listedLayers, heads: told},
	{model: "llama4", inside: "text_config", inner: plainInner, experts: "num_local_experts", moe: listedLayers, heads: told},
}

// ConfigFamilies returns the values of model_type that FromConfig accepts.
func ConfigFamilies() []string {
	var out []string
	for _, f := range families {
		out = append(out, f.model)
	}
	return out
}

// FromConfig reads the text of a config.json as the agent does (agent/loader/config.h). Errors call it `file`.
// granuleRows are the rows of a granule (0: DefaultGranuleRows). The agent takes the types of weights and scales, and
// the dense weights, from the tensors. FromConfig does not read tensors: the type is the declared one, FP8 scales are
// F32, and dense_bytes stays 0.
func FromConfig(text []byte, file string, granuleRows uint32) (*tangramv1.Geometry, error) {
	g, err := fromConfig(text, granuleRows)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return g, nil
}

func fromConfig(text []byte, granuleRows uint32) (*tangramv1.Geometry, error) {
	if pointer, found := strings.CutPrefix(string(text), lfsPointer); found {
		_, size, _ := strings.Cut(pointer, "\nsize ")
		size, _, _ = strings.Cut(size, "\n")
		return nil, fmt.Errorf("is a Git LFS pointer, not the file (%d bytes here, %.20s in the pointer); run git lfs pull where it was cloned", len(text), size)
	}
	outer, ok := fieldsOf(bytes.TrimPrefix(text, []byte("\uFEFF")), "")
	if !ok {
		return nil, fmt.Errorf("not a JSON object")
	}
	model := outer.text("model_type")
	if model == "" {
		outer.missing("model_type")
	}
	if outer.err != nil {
		return nil, outer.err
	}
	of, err := familyOf(model, false)
	if err != nil {
		return nil, err
	}
	f := outer
	if of.inside != "" {
		if f = outer.inside(of.inside); f == nil {
			outer.missing(of.inside)
			return nil, outer.err
		}
	}
	g := &tangramv1.Geometry{Model: model, Layers: f.positive(mostLayers, "num_hidden_layers"), Hidden: f.positive(mostNumber, "hidden_size"),
		MoeInner: f.positive(mostNumber, of.inner), Experts: f.experts(of.experts), GranuleRows: granuleRows,
		SlabFormat: tangramv1.SlabFormat_SLAB_FORMAT_GRANULE_MAJOR, PageBytes: PublicPageBytes}
	g.TopK = f.positive(mostNumber, "num_experts_per_tok", "experts_per_token")
	if g.TopK > g.Experts {
		f.fail("num_experts_per_tok = %d of %d experts", g.TopK, g.Experts)
	}
	f.heads(of, g)
	f.moeLayers(of, g)
	if f.err != nil {
		return nil, f.err
	}
	return g, f.weights(outer, of, g)
}

func familyOf(model string, fp8 bool) (family, error) {
	var known []string
	for _, f := range families {
		if f.model == model && (f.fp8 || !fp8) {
			return f, nil
		}
		if known = append(known, f.model); f.fp8 {
			known = append(known, f.model+" with block FP8")
		}
	}
	with := ""
	if fp8 {
		with = " with FP8 weights"
	}
	return family{}, fmt.Errorf("model_type %q%s is not supported (%s)", model, with, strings.Join(known, ", "))
}

func (f *fields) experts(own string) uint32 {
	names := []string{own}
	for _, name := range []string{"num_experts", "num_local_experts", "n_routed_experts"} {
		if name != own {
			names = append(names, name)
		}
	}
	return f.positive(mostNumber, names...)
}

func (f *fields) heads(of family, g *tangramv1.Geometry) {
	g.QueryHeads = f.positive(mostNumber, "num_attention_heads")
	if of.heads == latent { // one KV head: a latent with its rotated part
		g.KvHeads, g.HeadDim = 1, f.positive(mostNumber, "kv_lora_rank")+f.positive(mostNumber, "qk_rope_head_dim")
		g.KvHeadTokenBytes = uint64(g.HeadDim) * kvPageFloat
		return
	}
	g.KvHeads = f.positive(mostNumber, "num_key_value_heads")
	switch g.HeadDim = f.positiveOr("head_dim", 0); {
	case g.HeadDim > 0:
	case of.heads == told:
		f.missing("head_dim")
	case g.Hidden < g.QueryHeads:
		f.fail("head_dim is missing, and hidden_size = %d over num_attention_heads = %d is below 1", g.Hidden, g.QueryHeads)
	default:
		g.HeadDim = g.Hidden / g.QueryHeads
	}
	g.KvHeadTokenBytes = uint64(g.HeadDim) * 2 * kvPageFloat
}

func (f *fields) moeLayers(of family, g *tangramv1.Geometry) {
	var dense, listed map[uint64]bool
	var isListed bool
	first, step, at := uint32(0), uint32(1), uint32(0) // layers with layer % step == at
	switch of.moe {
	case bySteps:
		step = f.positiveOr("decoder_sparse_step", 1)
		dense, _ = f.layers("mlp_only_layers")
		at = step - 1
	case behind:
		first = f.count("first_k_dense_replace", of.dense)
		step = f.positiveOr("moe_layer_freq", 1)
	case listedLayers:
		listed, isListed = f.layers("moe_layers")
		step = f.positiveOr("interleave_moe_layer_step", 1)
		at = step - 1
	}
	for l := first; l < g.Layers && f.err == nil; l++ {
		if here := l%step == at; (isListed && listed[uint64(l)] || !isListed && here) && !dense[uint64(l)] {
			g.MoeLayers = append(g.MoeLayers, l)
		}
	}
}

// weights sets the type of the experts and the bytes of a granule.
func (f *fields) weights(outer *fields, of family, g *tangramv1.Geometry) error {
	fp8 := outer.blockFP8() || f.blockFP8()
	if err := cmp.Or(outer.err, f.err); err != nil {
		return err
	}
	element, scales := uint64(2), uint64(0)
	if fp8 {
		g.Dtype = tangramv1.DType_DTYPE_FP8_E4M3_BLOCK128
	}
	if g.GranuleRows == 0 {
		g.GranuleRows = DefaultGranuleRows(g.MoeInner, BlockRows(g.Dtype))
	}
	switch dtype := cmp.Or(f.text("dtype", "torch_dtype"), outer.text("dtype", "torch_dtype")); {
	case fp8:
		if _, err := familyOf(of.model, true); err != nil {
			return err
		}
		element = 1
		if g.GranuleRows%scaleBlock != 0 {
			return fmt.Errorf("granule_rows = %d is no multiple of %d, the rows of a block that FP8 scales", g.GranuleRows, scaleBlock)
		}
		scales = uint64(g.GranuleRows/scaleBlock) * RoundUp(uint64(g.Hidden), scaleBlock) / scaleBlock * scaleBytes
	case dtype == "bfloat16":
		g.Dtype = tangramv1.DType_DTYPE_BF16
	case dtype == "float32":
		g.Dtype, element = tangramv1.DType_DTYPE_F32, 4
	case dtype == "":
		return fmt.Errorf("dtype is missing, want bfloat16 or float32")
	default:
		return fmt.Errorf("dtype %q is not supported (bfloat16, float32)", dtype)
	}
	g.GranuleBytes = 3 * (uint64(g.GranuleRows)*uint64(g.Hidden)*element + scales)
	if of.bias {
		g.GranuleBytes += 2 * uint64(g.GranuleRows) * element
		g.ExpertTailBytes = uint64(g.Hidden) * element
	}
	return nil
}

// blockFP8 reports whether quantization_config declares FP8 weights scaled by blocks of 128 x 128. It rejects any other
// quantization.
func (f *fields) blockFP8() bool {
	_ = f.text("dtype", "torch_dtype")
	if f.find("compression_config") != "" {
		f.fail("compression_config is not supported (quantization_config of block FP8 is)")
	}
	q := f.inside("quantization_config")
	if q == nil {
		return false
	}
	switch method := q.text("quant_method"); method {
	case "fp8":
	case "":
		q.missing("quant_method")
	default:
		q.fail("%squant_method %q is not supported (fp8)", q.prefix, method)
	}
	if q.find("fmt") != "" && compact(q.object["fmt"]) != `"e4m3"` {
		q.refuse("fmt", `"e4m3"`)
	}
	switch block := q.find("weight_block_size"); {
	case block == "":
		q.missing("weight_block_size")
	case compact(q.object[block]) != "[128,128]":
		q.refuse(block, "[128,128]")
	}
	if q.err != nil {
		f.fail("%w", q.err)
	}
	return q.err == nil
}
