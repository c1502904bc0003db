package load

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadPlacement(t *testing.T) {
	p, err := ReadPlacement(strings.NewReader(`[[[0,2],[1]],[[1,2],[0,1]]]`), Options{})
	require.NoError(t, err)
	require.Equal(t, Placement{{{0, 2}, {1}}, {{1, 2}, {0, 1}}}, p)
	for text, want := range map[string]string{
		`{}`:                        "want a list",
		`[]`:                        "no layers",
		`[[]]`:                      "[0]: 0 ranks",
		`[[[0],[1]],[[0,1]]]`:       "[1]: 1 ranks, layer 0 has 2",
		"[[[0],\n[-1]]]":            "line 2, [0][1][0]: -1",
		`[[[0],[2,1]],[[0,1],[1]]]`: "layer 1: expert 2 of 3 has no slot",
		`[[[0]]] 1`:                 "after the end",
		`[[[0],[1.5]]]`:             "want a whole number",
	} {
		_, err := ReadPlacement(strings.NewReader(text), Options{})
		require.ErrorContains(t, err, want, text)
	}
	_, err = ReadPlacement(strings.NewReader(`[[[0],[1]]]`), Options{Layers: 2})
	require.ErrorContains(t, err, "the model has 2 MoE layers")
	p, err = ReadPlacementLists(strings.NewReader(`[[[0],[7,7]]]`), Options{})
	require.NoError(t, err)
	require.Equal(t, Placement{{{0}, {7, 7}}}, p)
}
