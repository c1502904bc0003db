package geometry

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// configFacts are the expected values in tests/golden/config.json for a config.json.
type configFacts struct {
	Layers, Hidden, Experts uint32
	MoeLayers               []uint32 `json:"moe_layers"`
	MoeInner                uint32   `json:"moe_inner"`
	TopK                    uint32   `json:"top_k"`
	QueryHeads              uint32   `json:"query_heads"`
	KvHeads                 uint32   `json:"kv_heads"`
	HeadDim                 uint32   `json:"head_dim"`
	Dtype                   string
	GranuleRows             uint32 `json:"granule_rows"`
	GranuleBytes            uint64 `json:"granule_bytes"`
	TailBytes               uint64 `json:"tail_bytes"`
}

type configCase struct {
	Base, Name string
	Set        map[string]json.RawMessage
	Unset      []string
	Facts      *configFacts
	Refused    string
}

func configCases(t testing.TB) (texts [][]byte, cases []configCase) {
	t.Helper()
	text, err := os.ReadFile("../../../tests/golden/config.json")
	require.NoError(t, err)
	var golden struct {
		Bases map[string]json.RawMessage
		Cases []configCase
	}
	require.NoError(t, json.Unmarshal(text, &golden))
	for _, c := range golden.Cases {
		var config map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(golden.Bases[c.Base], &config))
		for _, name := range c.Unset {
			delete(config, name)
		}
		for name, value := range c.Set {
			config[name] = value
		}
		text, err := json.Marshal(config)
		require.NoError(t, err)
		texts = append(texts, text)
	}
	return texts, golden.Cases
}

var dtypes = map[tangramv1.DType]string{tangramv1.DType_DTYPE_BF16: "BF16", tangramv1.DType_DTYPE_F32: "F32", tangramv1.DType_DTYPE_FP8_E4M3_BLOCK128: "FP8"}

func TestGoldenConfig(t *testing.T) {
	texts, cases := configCases(t)
	taken, refused := 0, 0
	for i, c := range cases {
		t.Run(c.Base+", "+c.Name, func(t *testing.T) {
			g, err := FromConfig(texts[i], "config.json", 128)
			if c.Facts == nil {
				refused++
				require.EqualError(t, err, "config.json: "+c.Refused)
				return
			}
			taken++
			require.NoError(t, err)
			require.Equal(t, c.Base, g.Model)
			require.Equal(t, *c.Facts, configFacts{Layers: g.Layers, Hidden: g.Hidden, Experts: g.Experts, MoeLayers: g.MoeLayers, MoeInner: g.MoeInner,
				TopK: g.TopK, QueryHeads: g.QueryHeads, KvHeads: g.KvHeads, HeadDim: g.HeadDim, Dtype: dtypes[g.Dtype],
				GranuleRows: g.GranuleRows, GranuleBytes: g.GranuleBytes, TailBytes: g.ExpertTailBytes})
			v, err := New(g)
			require.NoError(t, err)
			require.Equal(t, uint64(v.Granules)*g.GranuleBytes+g.ExpertTailBytes, v.ExpertBytes)
		})
	}
	require.Greater(t, taken, 30)
	require.Greater(t, refused, 30)
}

func TestFromConfig_WhenTextIsNotConfig(t *testing.T) {
	for text, want := range map[string]string{
		"": "not a JSON object", "nothing": "not a JSON object", "[]": "not a JSON object", "null": "not a JSON object", `{"model_type":`: "not a JSON object", "{} {}": "not a JSON object",
		"version https://git-lfs.github.com/spec/v1\noid sha256:9f2d\nsize 913\n": "is a Git LFS pointer, not the file (68 bytes here, 913 in the pointer); run git lfs pull where it was cloned",
		`{"model_type":"llama"}`: `model_type "llama" is not supported (qwen3_moe, qwen3_moe with block FP8, gpt_oss, mixtral, deepseek_v2, deepseek_v3, deepseek_v3 with block FP8, glm4_moe, llama4_text, llama4)`,
	} {
		_, err := FromConfig([]byte(text), "a/config.json", 16)
		require.EqualError(t, err, "a/config.json: "+want)
	}
}

// The declared type is used, which the agent takes from the tensors.
func TestFromConfig_WhenDtypeIsUnknown(t *testing.T) {
	const config = `{"model_type":"mixtral","num_hidden_layers":3,"hidden_size":256,"intermediate_size":384,"num_local_experts":6,"num_experts_per_tok":2,
		"num_attention_heads":8,"num_key_value_heads":2`
	for more, want := range map[string]string{
		`}`:                         "dtype is missing, want bfloat16 or float32",
		`,"torch_dtype":"float16"}`: `dtype "float16" is not supported (bfloat16, float32)`,
	} {
		_, err := FromConfig([]byte(config+more), "config.json", 16)
		require.EqualError(t, err, "config.json: "+want)
	}
	_, err := FromConfig([]byte("\uFEFF"+config+`,"dtype":"bfloat16"}`), "config.json", 16)
	require.NoError(t, err, "a byte order mark is passed over")
}

func TestFromConfig_WhenGranulesSplitFP8Block(t *testing.T) {
	texts, cases := configCases(t)
	for i, c := range cases {
		if c.Facts != nil && c.Facts.Dtype == "FP8" {
			_, err := FromConfig(texts[i], "config.json", 64)
			require.EqualError(t, err, "config.json: granule_rows = 64 is no multiple of 128, the rows of a block that FP8 scales")
		}
	}
}

// The values equal those in the table of public models.
func TestFromConfig_WhenModelIsPublic(t *testing.T) {
	for name, config := range map[string]string{
		"DeepSeek-V3/R1/V3.1": `{"model_type":"deepseek_v3","num_hidden_layers":61,"hidden_size":7168,"moe_intermediate_size":2048,"n_routed_experts":256,"num_experts_per_tok":8,
			"first_k_dense_replace":3,"num_attention_heads":128,"kv_lora_rank":512,"qk_rope_head_dim":64,"torch_dtype":"bfloat16",
			"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]}}`,
		"Mixtral-8x7B": `{"model_type":"mixtral","num_hidden_layers":32,"hidden_size":4096,"intermediate_size":14336,"num_local_experts":8,"num_experts_per_tok":2,
			"num_attention_heads":32,"num_key_value_heads":8,"torch_dtype":"bfloat16"}`,
		"GLM-4.5-Air": `{"model_type":"glm4_moe","num_hidden_layers":46,"hidden_size":4096,"moe_intermediate_size":1408,"n_routed_experts":128,"num_experts_per_tok":8,
			"first_k_dense_replace":1,"num_attention_heads":96,"num_key_value_heads":8,"head_dim":128,"dtype":"bfloat16"}`,
		"Llama-4-Maverick-17B-128E": `{"model_type":"llama4","torch_dtype":"bfloat16","text_config":{"num_hidden_layers":48,"hidden_size":5120,"intermediate_size":8192,
			"num_local_experts":128,"num_experts_per_tok":1,"interleave_moe_layer_step":2,"num_attention_heads":40,"num_key_value_heads":8,"head_dim":128}}`,
		"DeepSeek-V2-Lite": `{"model_type":"deepseek_v2","num_hidden_layers":27,"hidden_size":2048,"moe_intermediate_size":1408,"n_routed_experts":64,"num_experts_per_tok":6,
			"first_k_dense_replace":1,"num_attention_heads":16,"kv_lora_rank":512,"qk_rope_head_dim":64,"torch_dtype":"bfloat16"}`,
	} {
		want, err := PublicNamed(name)
		require.NoError(t, err)
		got, err := FromConfig([]byte(config), "config.json", want.GranuleRows)
		require.NoError(t, err, name)
		require.Equal(t, []any{want.MoeLayers, want.Experts, want.TopK, want.GranuleBytes, want.ExpertTailBytes, want.MoeInner, want.KvHeads, want.QueryHeads, want.Dtype},
			[]any{got.MoeLayers, got.Experts, got.TopK, got.GranuleBytes, got.ExpertTailBytes, got.MoeInner, got.KvHeads, got.QueryHeads, got.Dtype}, name)
	}
}

// A result is either a valid geometry or an error.
func FuzzFromConfig(f *testing.F) {
	texts, _ := configCases(f)
	for _, text := range texts {
		f.Add(text, uint32(16))
	}
	f.Fuzz(func(t *testing.T, text []byte, rows uint32) {
		g, err := FromConfig(text, "config.json", rows)
		if err != nil {
			return
		}
		if v, err := New(g); err == nil && v.MoELayers() != len(g.MoeLayers) {
			t.Fatalf("%d layers of experts, the view has %d", len(g.MoeLayers), v.MoELayers())
		}
	})
}
