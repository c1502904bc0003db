package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/kernels"
)

func TestPaceTable(t *testing.T) {
	code, out, errs := call("", "pace-table", "-", "--model", "qwen3-30b-a3b", "--engine", "trtllm", "--ranks", "3")
	require.Zero(t, code, errs)
	table, err := kernels.ReadCompiled(strings.NewReader(out))
	require.NoError(t, err)
	for _, s := range []kernels.Shape{kernels.Expert(1), kernels.Expert(2), kernels.Tensor(3)} {
		_, err := table.Step(s)
		require.NoError(t, err)
	}
	for args, want := range map[string]string{"--model gpt-2": "gpt-2", "--ranks 0": "--ranks is 0; want 1 to 8", "--ranks 9": "--ranks is 9; want 1 to 8",
		"--engine llama.cpp": "no measured kernels for --engine", "--routing fair": "no measured kernels for --routing"} {
		code, out, errs := call("", append([]string{"pace-table", "-"}, strings.Fields(args)...)...)
		require.Equal(t, 2, code, args)
		require.Empty(t, out)
		require.Contains(t, errs, want)
	}
}

// Without a file argument, nothing is printed to a terminal.
func TestPaceTable_WhenFileIsNamed(t *testing.T) {
	code, out, errs := call("", "pace-table")
	require.Equal(t, 2, code)
	require.Empty(t, out)
	require.Contains(t, errs, "tangram pace-table takes one argument, FILE (-: standard output), found 0; see tangram pace-table --help")
	_, want, _ := call("", "pace-table", "-", "--ranks", "1")
	path := filepath.Join(t.TempDir(), "pace.json")
	code, out, errs = call("", "pace-table", path, "--ranks", "1")
	require.Zero(t, code, errs)
	require.Empty(t, out)
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, string(got))
}
