package geometry

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

func config(change map[string]any) string {
	fields := map[string]any{"model_type": "qwen3_moe", "num_hidden_layers": 6, "hidden_size": 256, "moe_intermediate_size": 160, "num_local_experts": 64,
		"num_experts_per_tok": 4, "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 32, "decoder_sparse_step": 2, "mlp_only_layers": []int{3},
		"dtype": "bfloat16"}
	for name, value := range change {
		if fields[name] = value; value == nil {
			delete(fields, name)
		}
	}
	text, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func TestFromConfig(t *testing.T) {
	g, err := FromConfig(strings.NewReader(config(nil)), 16)
	require.NoError(t, err)
	require.Equal(t, []uint32{1, 5}, g.MoeLayers, "every second layer, but those that are dense")
	require.Equal(t, uint64(3*16*256*2), g.GranuleBytes)
	require.Equal(t, uint64(32*2*4), g.KvHeadTokenBytes)
	v, err := New(g)
	require.NoError(t, err)
	require.Equal(t, uint64(3*160*256*2), v.ExpertBytes)

	g, err = FromConfig(strings.NewReader(config(map[string]any{"dtype": nil, "torch_dtype": "float32", "num_experts": 8})), 16)
	require.NoError(t, err)
	require.Equal(t, tangramv1.DType_DTYPE_F32, g.Dtype)
	require.Equal(t, uint32(8), g.Experts)
}

func TestFromConfigRefuses(t *testing.T) {
	for want, change := range map[string]map[string]any{
		`model_type "llama" is not`:              {"model_type": "llama"},
		`model_type  is not`:                     {"model_type": nil},
		`hidden_size is missing`:                 {"hidden_size": nil},
		`num_experts is missing`:                 {"num_local_experts": nil},
		`head_dim must be a positive`:            {"head_dim": -1},
		`num_experts_per_tok = 65 of 64`:         {"num_experts_per_tok": 65},
		`decoder_sparse_step must be`:            {"decoder_sparse_step": 0},
		`mlp_only_layers is no list`:             {"mlp_only_layers": "x"},
		`num_hidden_layers = 5000, must be 1..4`: {"num_hidden_layers": 5000},
		`dtype "float16" is not supported`:       {"dtype": "float16"},
		`dtype 1 is no name`:                     {"dtype": 1},
	} {
		_, err := FromConfig(strings.NewReader(config(change)), 16)
		require.ErrorContains(t, err, want)
	}
	_, err := FromConfig(strings.NewReader("[]"), 16)
	require.ErrorContains(t, err, "config.json")
}

// What is read is a geometry, or refused as one.
func FuzzFromConfig(f *testing.F) {
	f.Add(config(nil), uint32(16))
	f.Add(config(map[string]any{"dtype": nil, "torch_dtype": "float32"}), uint32(0))
	f.Fuzz(func(t *testing.T, text string, rows uint32) {
		g, err := FromConfig(strings.NewReader(text), rows)
		if err != nil {
			return
		}
		if v, err := New(g); err == nil && v.MoELayers() != len(g.MoeLayers) {
			t.Fatalf("%d layers of experts, the view has %d", len(g.MoeLayers), v.MoELayers())
		}
	})
}
