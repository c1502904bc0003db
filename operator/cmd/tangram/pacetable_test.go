package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/kernels"
)

func TestPaceTable(t *testing.T) {
	code, out, errs := call("", "pace-table", "--model", "qwen3-30b-a3b", "--engine", "trtllm", "--ranks", "3")
	require.Zero(t, code, errs)
	table, err := kernels.ReadCompiled(strings.NewReader(out))
	require.NoError(t, err)
	for _, s := range []kernels.Shape{kernels.Expert(1), kernels.Expert(2), kernels.Tensor(3)} {
		_, err := table.Step(s)
		require.NoError(t, err)
	}
	for args, want := range map[string]string{"--model gpt-2": "gpt-2", "--ranks 0": "at least 1", "--ranks 9": "beyond what was measured",
		"--engine llama.cpp": "was not measured", "--routing fair": "was not measured"} {
		code, out, errs := call("", append([]string{"pace-table"}, strings.Fields(args)...)...)
		require.Equal(t, 2, code, args)
		require.Empty(t, out)
		require.Contains(t, errs, want)
	}
}
