package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

type balanced struct {
	Moves, Nodes int
	All          struct{ Now, After, Reachable float64 }
	MoveList     []struct{ Layer, Expert, To int }
	Placement    [][][]int
}

// balanceOf plans a file with the flags, and returns the JSON.
func balanceOf(t *testing.T, load string, flags ...string) balanced {
	t.Helper()
	code, out, errs := call(load, append([]string{"balance", "--load", "-", "-o", "json"}, flags...)...)
	require.Zero(t, code, errs)
	var got balanced
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	return got
}

func placementFile(t *testing.T, of any) string {
	t.Helper()
	wire, err := json.Marshal(of)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "placement.json")
	require.NoError(t, os.WriteFile(path, wire, 0o600))
	return path
}

// Mode full makes only moves that pay.
func TestBalance_WhenModeIsFull(t *testing.T) {
	const hot = `{"tangram_load":1,"windows":[[[900,0,0,0,0,0],[0,0,0,0,0,0],[30,20,10,10,20,30]]]}`
	got := balanceOf(t, hot, "--ranks", "3", "--redundant-experts", "6", "--mode", "full")
	moved := map[int]int{}
	for _, m := range got.MoveList {
		if moved[m.Layer]++; m.Layer == 0 {
			require.Zero(t, m.Expert, "the others have no load")
		}
	}
	require.Equal(t, 2, moved[0], "the hot expert lies on all ranks")
	require.Zero(t, moved[1], "no load, no moves")
	require.InDelta(t, 1, got.All.After, 1e-3)
	again := balanceOf(t, hot, "--ranks", "3", "--redundant-experts", "6", "--mode", "full", "--old", placementFile(t, got.Placement))
	require.Empty(t, again.MoveList)
	require.Equal(t, got.Placement, again.Placement)

	idle := `{"tangram_load":1,"windows":[[[0,0,0,0,0,0],[0,0,0,0,0,0]]]}`
	require.Empty(t, balanceOf(t, idle, "--ranks", "3", "--redundant-experts", "6", "--mode", "full").MoveList)

	loads, err := os.ReadFile(filepath.Join(docs, "placement", "loads.json"))
	require.NoError(t, err)
	last := 1000
	for _, price := range []string{"0", "0.002", "0.05", "10"} {
		p := balanceOf(t, string(loads), "--ranks", "4", "--redundant-experts", "4", "--mode", "full", "--price", price)
		require.LessOrEqual(t, p.Moves, last, "the dearer a move, the fewer")
		require.GreaterOrEqual(t, p.All.After, p.All.Now)
		last = p.Moves
	}
	require.Zero(t, last)
}

// The number of nodes need not divide that of ranks, in balance and in plan.
func TestBalance_WhenNodesDoNotDivideRanks(t *testing.T) {
	got := balanceOf(t, small, "--ranks", "3", "--nodes", "2", "--redundant-experts", "2", "--groups", "2")
	require.Equal(t, 2, got.Nodes)
	for want, nodes := range map[string]string{"number of nodes is 4; want 1 to 3, the number of ranks": "4", "number of nodes is 0": "0"} {
		code, _, errs := call(small, "balance", "--load", "-", "--ranks", "3", "--redundant-experts", "2", "--nodes", nodes)
		require.Equal(t, 2, code)
		require.Contains(t, errs, want)
	}
	loads := `{"logical_count":[` + strings.Repeat("[9,4,1,1,1,1,1,2],", 31) + "[9,4,1,1,1,1,1,2]]}"
	code, out, errs := call(loads, "plan", "--geometry", "Mixtral-8x7B", "--from-ranks", "2", "--ranks", "3", "--ranks-per-pod", "2", "--load", "-", "--redundant-experts", "2", "--lines", "1")
	require.Zero(t, code, errs)
	require.Contains(t, out, "on 3 ranks (2 nodes)")
}

// Leading layers without load look like dense ones.
func TestBalance_WhenLeadingLayersAreIdle(t *testing.T) {
	const dense = `{"logical_count":[[0,0,0,0],[0,0,0,0],[3,1,1,1],[0,0,0,0],[1,1,1,1]]}`
	code, _, errs := call(dense, "balance", "--load", "-", "--ranks", "2")
	require.Zero(t, code, errs)
	require.Equal(t, "-: layers 0..1 have no load in any window; if these are dense layers, set --first-layer 2\n", errs)
	code, _, errs = call(dense, "balance", "--load", "-", "--ranks", "2", "--first-layer", "1")
	require.Zero(t, code, errs)
	require.Equal(t, "-: layer 1 has no load in any window; if these are dense layers, set --first-layer 2\n", errs)
	for _, flags := range [][]string{{"--first-layer", "2"}, {"--first-layer", "3"}} {
		_, _, errs = call(dense, append([]string{"balance", "--load", "-", "--ranks", "2"}, flags...)...)
		require.Equal(t, flags[1] == "3", errs != "", errs)
	}
	_, _, errs = call(`{"logical_count":[[0,0],[0,0]]}`, "balance", "--load", "-", "--ranks", "2")
	require.Empty(t, errs, "all are idle: that is no sign of dense layers")
}

// vLLM's map is read as is. Files of other formats are recognized and rejected.
func TestBalance_WhenFilesAreOfOtherTools(t *testing.T) {
	flat := placementFile(t, [][]int{{0, 1, 2, 3, 0, 1}, {3, 2, 1, 0, 3, 2}})
	nested := placementFile(t, [][][]int{{{0, 1, 2}, {3, 0, 1}}, {{3, 2, 1}, {0, 3, 2}}})
	want := balanceOf(t, small, "--ranks", "2", "--redundant-experts", "2", "--old", nested)
	require.Equal(t, want, balanceOf(t, small, "--ranks", "2", "--redundant-experts", "2", "--old", flat))
	require.Equal(t, want, balanceOf(t, small, "--ranks", "2", "--redundant-experts", "2", "--old", flat, "--old-format", "vllm"))
	for _, c := range []struct{ load, old, want string }{
		{"layer_id,expert_id,count\n3,0,24\n", "", "found a CSV file of SGLang, which has the counts of one rank and omits experts without tokens"},
		{"PK\x03\x04x", "", "found a PyTorch or zip file; convert it to JSON"},
		{"\x1f\x8bx", "", "found a gzip file; decompress it"},
		{"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "", "Git LFS pointer instead of the file; run git lfs pull"},
		{"", "", "file is empty; want one of the formats vllm, sglang, ascend, json, csv"},
		{"a,b\n1,2\n", "", "the first 8 bytes match none of the formats vllm, sglang, ascend, json, csv; set the format of the file"},
		{`{"load_history":[],"logical_count":[]}`, "", "match the formats vllm and sglang; set the format of the file"},
		{small, placementFile(t, [][]int{{0, 1, 2, 3, 0}}), "line 1, [0]: 5 physical experts cannot be dealt evenly to 2 ranks"},
		{small, placementFile(t, [][]int{{0, 1, 2, 0}, {0, 1, 2, 3}}), "expert 3 of 4 has no slot"},
	} {
		args := []string{"balance", "--load", "-", "--ranks", "2", "--redundant-experts", "2"}
		if c.old != "" {
			args = append(args, "--old", c.old)
		}
		code, _, errs := call(c.load, args...)
		require.Equal(t, 2, code, c.want)
		require.Contains(t, errs, c.want)
		require.NotContains(t, errs, "()")
	}
}
