package harness

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Shape is the shape of a Qwen3-MoE-like model in bf16.
type Shape struct {
	Layers, DenseLayers                int // the first DenseLayers of Layers have no experts
	Hidden, Inner, Experts, TopK       int
	QueryHeads, KVHeads, HeadDim, Rows int // Rows: of the one dense tensor, [Rows, Hidden]
}

// DeepSeekV3 has the routed experts of DeepSeek-V3 (58 x 256, 7168 x 2048), with tensor names of the family that the
// loader knows. Its attention differs from the original, and the dense weights are one tensor of 1.7 GiB.
func DeepSeekV3() Shape {
	return Shape{Layers: 61, DenseLayers: 3, Hidden: 7168, Inner: 2048, Experts: 256, TopK: 8, QueryHeads: 128, KVHeads: 8, HeadDim: 128, Rows: 129280}
}

// Qwen3MoE235B is Qwen3-235B-A22B: 94 layers of 128 experts of 4096 x 1536.
func Qwen3MoE235B() Shape {
	return Shape{Layers: 94, Hidden: 4096, Inner: 1536, Experts: 128, TopK: 8, QueryHeads: 64, KVHeads: 4, HeadDim: 128, Rows: 151936}
}

// Qwen3MoE30B has `layers` layers of Qwen3-30B-A3B (128 experts of 2048 x 768), and a small vocabulary.
func Qwen3MoE30B(layers int) Shape {
	return Shape{Layers: layers, Hidden: 2048, Inner: 768, Experts: 128, TopK: 8, QueryHeads: 32, KVHeads: 4, HeadDim: 128, Rows: 1024}
}

// HollowCheckpoint writes a checkpoint with complete headers; its tensors are a hole in the file. For worlds that have
// sizes only.
func HollowCheckpoint(dir string, s Shape) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	var without []int
	for l := range s.DenseLayers {
		without = append(without, l)
	}
	config, err := json.Marshal(map[string]any{"model_type": "qwen3_moe", "num_hidden_layers": s.Layers, "hidden_size": s.Hidden,
		"moe_intermediate_size": s.Inner, "intermediate_size": s.Inner, "num_experts": s.Experts, "num_experts_per_tok": s.TopK,
		"num_attention_heads": s.QueryHeads, "num_key_value_heads": s.KVHeads, "head_dim": s.HeadDim, "vocab_size": s.Rows,
		"mlp_only_layers": without, "decoder_sparse_step": 1, "rope_theta": 10000.0})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600); err != nil {
		return err
	}
	type tensor struct {
		DType   string   `json:"dtype"`
		Shape   [2]int   `json:"shape"`
		Offsets [2]int64 `json:"data_offsets"`
	}
	header, next := map[string]tensor{}, int64(0)
	add := func(name string, rows, columns int) {
		end := next + 2*int64(rows)*int64(columns)
		header[name] = tensor{"BF16", [2]int{rows, columns}, [2]int64{next, end}}
		next = end
	}
	add("model.embed_tokens.weight", s.Rows, s.Hidden)
	for l := s.DenseLayers; l < s.Layers; l++ {
		for e := range s.Experts {
			prefix := fmt.Sprintf("model.layers.%d.mlp.experts.%d.", l, e)
			add(prefix+"gate_proj.weight", s.Inner, s.Hidden)
			add(prefix+"up_proj.weight", s.Inner, s.Hidden)
			add(prefix+"down_proj.weight", s.Hidden, s.Inner)
		}
	}
	text, err := json.Marshal(header)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "model.safetensors")
	if err := os.WriteFile(path, append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...), 0o600); err != nil {
		return err
	}
	return os.Truncate(path, 8+int64(len(text))+next)
}
