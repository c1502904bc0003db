package worlds

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Golden has the results of Hugging Face transformers, greedy in fp32 (e2e/model/make_golden.py).
type Golden struct {
	Checkpoint map[string]string `json:"checkpoint_sha256"`
	Cases      []GoldenCase      `json:"cases"`
}

// GoldenCase is a prompt and its answer.
type GoldenCase struct {
	Prompt []uint32 `json:"prompt"`
	Tokens []uint32 `json:"tokens"`
}

// ReadGolden reads the golden file of a preset.
func ReadGolden(t *testing.T, preset string) Golden {
	t.Helper()
	wire, err := os.ReadFile(filepath.Join(Root, "e2e/model/golden", preset+".json"))
	require.NoError(t, err)
	var g Golden
	require.NoError(t, json.Unmarshal(wire, &g))
	require.NotEmpty(t, g.Cases)
	require.NotEmpty(t, g.Checkpoint)
	return g
}
