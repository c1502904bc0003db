package geometry

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// checkpointOf writes files with these headers, each followed by `body` bytes.
func checkpointOf(t testing.TB, body int, headers ...string) string {
	folder := t.TempDir()
	for i, h := range headers {
		text := binary.LittleEndian.AppendUint64(nil, uint64(len(h)))
		text = append(append(text, h...), make([]byte, body)...)
		require.NoError(t, os.WriteFile(filepath.Join(folder, string(rune('a'+i))+".safetensors"), text, 0o600))
	}
	return folder
}

func TestDenseBytes_WhenFilesHaveExperts(t *testing.T) {
	folder := checkpointOf(t, 100,
		`{"__metadata__": {"format": "pt"}, "model.embed_tokens.weight": {"dtype": "BF16", "shape": [5, 2], "data_offsets": [0, 20]},
		  "model.layers.0.mlp.experts.3.up_proj.weight": {"dtype": "BF16", "shape": [20], "data_offsets": [20, 60]}}`,
		`{"model.layers.0.mlp.shared_experts.up_proj.weight": {"dtype": "BF16", "shape": [10], "data_offsets": [0, 20]}}`)
	bytes, err := DenseBytes(folder)
	require.NoError(t, err)
	require.EqualValues(t, 40, bytes)
}

func TestDenseBytes_WhenFilesAreInvalid(t *testing.T) {
	_, err := DenseBytes(t.TempDir())
	require.ErrorContains(t, err, "no *.safetensors file")
	_, err = DenseBytes(checkpointOf(t, 1, `{"a": {"data_offsets": [0, 500]}}`))
	require.ErrorContains(t, err, "tensor a has the range [0 500] of a file of")
	_, err = DenseBytes(checkpointOf(t, 1, "[]"))
	require.ErrorContains(t, err, "a.safetensors: the header is not JSON of tensors")
	folder := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(folder, "x.safetensors"), []byte("12345678901"), 0o600))
	_, err = DenseBytes(folder)
	require.ErrorContains(t, err, "x.safetensors: not a safetensors file")
}

// For any header, the result is bytes or an error.
func FuzzDenseBytes(f *testing.F) {
	f.Add([]byte("\x02\x00\x00\x00\x00\x00\x00\x00{}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		folder := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(folder, "x.safetensors"), text, 0o600))
		_, _ = DenseBytes(folder)
	})
}
