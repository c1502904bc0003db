package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/layout"
)

func TestPlacementFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "placement.json")
	read := func(text, mode string) ([][][]uint32, error) {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		want, err := wanted(2, mode, nil, path, 1)
		return want.Shape.Placement, err
	}
	placement, err := read(`[[[3, 0], [1, 2, 0]], [[0], [1]]]`+"\n", "ExpertParallel")
	require.NoError(t, err)
	require.Equal(t, [][][]uint32{{{0, 3}, {0, 1, 2}}, {{0}, {1}}}, placement)

	for text, want := range map[string]string{
		``:                      "the file ends here",
		`{"layers": []}`:        "want a list",
		`[]`:                    "no layers",
		`[[[0], [1]]] [[[0]]]`:  "after the end",
		`[[[0], [1]], 5]`:       "line 1, [1]",
		`[[[0], [1]], null]`:    "line 1, [1]",
		`[[[0], [1]], [[0]]]`:   "[1]: 1 ranks, layer 0 has 2",
		`[[[0]], [[0]]]`:        "placement has 1 ranks; want 2, the value of --ranks",
		"[[[0],\n [-1]]]":       "line 2, [0][1][0]: -1",
		`[[[0], [1.5]]]`:        "[0][1][0]",
		`[[[0], [5000000000]]]`: "[0][1][0]",
		`[[[0], [1, null]]]`:    "[0][1][1]",
		`[[[0], "1"]]`:          "[0][1]",
		`[[[0], [1]`:            "the file ends here",
	} {
		_, err := read(text, "ExpertParallel")
		require.ErrorContains(t, err, want, text)
		require.ErrorContains(t, err, "--placement "+path+": ", text)
	}
	_, err = read(`[[[0], [1]]]`, "TensorParallel")
	require.ErrorContains(t, err, "a placement cannot be used with --mode TensorParallel; want --mode ExpertParallel")
	_, err = wanted(2, "ExpertParallel", nil, path+".none", 1)
	require.ErrorContains(t, err, "--placement "+path+".none: open ")
	require.ErrorAs(t, blame(path, &layout.BadPlacement{Why: "layer 1: no rank has expert 3"}), &usageError{})
	require.EqualError(t, blame(path, &layout.BadPlacement{Why: "layer 1: no rank has expert 3"}),
		"--placement "+path+": shape: layer 1: no rank has expert 3")
	require.Equal(t, os.ErrClosed, blame(path, os.ErrClosed))
}
