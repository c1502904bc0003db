package geometry

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPublicNamed(t *testing.T) {
	for name, want := range map[string]string{
		"Qwen3-30B-A3B": "Qwen3-30B-A3B", "qwen3-30b-a3b": "Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B": "Qwen3-30B-A3B", "qwen3-30b": "Qwen3-30B-A3B",
		"DeepSeek-V3/R1/V3.1": "DeepSeek-V3/R1/V3.1", "deepseek-v3": "DeepSeek-V3/R1/V3.1", "deepseek-ai/DeepSeek-R1": "DeepSeek-V3/R1/V3.1", "DeepSeek-V3.1": "DeepSeek-V3/R1/V3.1",
		"GLM-4.5": "GLM-4.5/4.6/4.7", "zai-org/GLM-4.6": "GLM-4.5/4.6/4.7", "GLM-4.5-Air": "GLM-4.5-Air", "Kimi-K2": "Kimi-K2-Instruct", "moonshotai/Kimi-K2-Instruct": "Kimi-K2-Instruct",
		"mistralai/Mixtral-8x7B": "Mixtral-8x7B", "meta-llama/Llama-4-Scout": "Llama-4-Scout-17B-16E", "openai/gpt-oss-20b": "gpt-oss-20b", "minimax-m2.5": "MiniMax-M2/M2.5",
	} {
		g, err := PublicNamed(name)
		require.NoError(t, err, name)
		require.Equal(t, want, g.Model, name)
	}
	for name, want := range map[string]string{
		"gpt-oss": `"gpt-oss" may be gpt-oss-120b or gpt-oss-20b`, "Qwen/Qwen3": `"Qwen/Qwen3" may be Qwen3-30B-A3B or Qwen3-235B-A22B or Qwen3-Coder-480B-A35B or Qwen3.5-397B-A17B`,
		"none": `"none" is no public model: Qwen3-30B-A3B, `, "": `"" is no public model: Qwen3-30B-A3B, `, "Qwen/": `"Qwen/" is no public model`, "/": `"/" is no public model`,
	} {
		_, err := PublicNamed(name)
		require.ErrorContains(t, err, want)
	}
}
