package plancli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGeometry_WhenFolderFileOrName(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "config.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"model_type":"mixtral","num_hidden_layers":3,"hidden_size":256,"intermediate_size":384,"num_local_experts":6,
		"num_experts_per_tok":2,"num_attention_heads":8,"num_key_value_heads":2,"torch_dtype":"bfloat16"}`), 0o600))
	for _, of := range []string{dir, dir + "/", file} {
		v, err := Geometry(of, 128, 0, 0)
		require.NoError(t, err, of)
		require.EqualValues(t, 3*256*384*2, v.ExpertBytes)
	}
	v, err := Geometry("mistralai/mixtral-8x7b", 128, 0, 0)
	require.NoError(t, err)
	require.Equal(t, "Mixtral-8x7B", v.Proto.Model)

	v, err = Geometry("Qwen3-30B-A3B", 0, 0, 0)
	require.NoError(t, err)
	require.EqualValues(t, 8, v.Granules, "8 ranks can share an expert")
	v, err = Geometry("Qwen3-30B-A3B", 48, 0, 0)
	require.NoError(t, err)
	require.EqualValues(t, 16, v.Granules, "a public model is cut as is said")
	require.EqualValues(t, 9437184, v.ExpertBytes)
	_, err = Geometry("Qwen3-30B-A3B", 100, 0, 0)
	require.ErrorContains(t, err, "granule_rows = 100 does not divide the 768 rows")

	pointer := filepath.Join(t.TempDir(), "config.json")
	require.NoError(t, os.WriteFile(pointer, []byte("version https://git-lfs.github.com/spec/v1\noid sha256:9f2d\nsize 913\n"), 0o600))
	empty := t.TempDir()
	for of, want := range map[string]string{
		"none":                `no config.json at that path, and "none" is no public model: Qwen3-30B-A3B, `,
		"gpt-oss":             `"gpt-oss" may be gpt-oss-120b or gpt-oss-20b`,
		empty:                 "open " + empty + "/config.json: no such file or directory",
		filepath.Dir(pointer): pointer + ": is a Git LFS pointer, not the file (68 bytes here, 913 in the pointer); run git lfs pull",
	} {
		_, err := Geometry(of, 128, 0, 0)
		require.ErrorContains(t, err, want)
	}
}
