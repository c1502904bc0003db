package bench

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// modeSwitch returns a few layers of a public model, its plan between two modes on 8 ranks, and the layout before.
func modeSwitch(t *testing.T, model string, from, to layout.Mode) (*geometry.View, *tangramv1.Layout, *tangramv1.Plan) {
	t.Helper()
	views, err := publicViews()
	require.NoError(t, err)
	v, err := find(views, model)
	require.NoError(t, err)
	v, err = firstLayers(v, 3)
	require.NoError(t, err)
	now, err := start(v, modelRanks, from)
	require.NoError(t, err)
	result, err := planner.Plan(request(v, now, modelRanks, to))
	require.NoError(t, err)
	return v, now, result.Plan
}

func TestPlanMovesMatchPlannedBytes(t *testing.T) {
	for _, model := range []string{"Qwen3-235B-A22B", "DeepSeek-V3/R1/V3.1"} {
		for _, way := range [][2]layout.Mode{{layout.Expert, layout.Tensor}, {layout.Tensor, layout.Expert}} {
			v, now, plan := modeSwitch(t, model, way[0], way[1])
			moved, err := movesOf(v, now, plan)
			require.NoError(t, err)
			var between, local, kinds uint64
			for from, row := range moved.links {
				for to, bytes := range row {
					if from == to {
						local += bytes
					} else {
						require.Positive(t, bytes, "every rank holds some of what every other needs")
						between += bytes
					}
				}
			}
			require.Equal(t, plan.Cost.ExpertBytes, between)
			require.Equal(t, plan.Cost.LocalBytes, local)
			for kind, n := range moved.count {
				kinds += n * uint64(kind[4]) * v.Proto.GranuleBytes
			}
			require.Equal(t, between+local, kinds)
		}
	}
}

func TestPlanMovesRejectSourceWithoutGranules(t *testing.T) {
	v, now, plan := modeSwitch(t, "Qwen3-235B-A22B", layout.Expert, layout.Tensor)
	fetches := plan.Flips[0].Parts[0].Fetches
	held := fetches.Source[0]
	fetches.Source[0] = held%modelRanks + 1
	_, err := movesOf(v, now, plan)
	require.ErrorContains(t, err, "and not all of")
	fetches.Source[0] = 0
	_, err = movesOf(v, now, plan)
	require.ErrorContains(t, err, "a fetch from the checkpoint")
}

func TestRowMajorSectionsCoverGranule(t *testing.T) {
	views, err := publicViews()
	require.NoError(t, err)
	known := 0
	for _, v := range views {
		if v.Proto.ExpertTailBytes > 0 || v.Proto.Dtype == tangramv1.DType_DTYPE_MXFP4 {
			continue
		}
		if _, err := rowMajorView(v); err == nil {
			known++
		} else {
			require.NotContains(t, []string{"Qwen3-235B-A22B", "DeepSeek-V3/R1/V3.1"}, v.Proto.Model, "%v", err)
		}
	}
	require.Greater(t, known, 5)
	for _, v := range views {
		if v.Proto.Dtype == tangramv1.DType_DTYPE_MXFP4 {
			_, err := rowMajorView(v)
			require.ErrorContains(t, err, "no sections of")
		}
	}
}

func TestTrafficCountsRepeatedMoves(t *testing.T) {
	v, _, plan := modeSwitch(t, "Qwen3-235B-A22B", layout.Expert, layout.Tensor)
	kind := moveKind{2, 0, 12, 3, 2}
	moved := &planMoves{count: map[moveKind]uint64{kind: 2}, links: make([][]uint64, modelRanks)}
	for r := range moved.links {
		moved.links[r] = make([]uint64, modelRanks)
	}
	moved.links[0][1], moved.links[2][1] = 37e9, 37e9
	found := moveTraffic{Ranges: 3, RangeBytes: 5, Alone: traffic{Loads: sectors{1, 100, 4, 4}, Stores: sectors{1, 100, 4, 3}}}
	line := describe(v, plan, moved, map[moveKind]moveTraffic{kind: found})
	require.EqualValues(t, 6, line["copy_engine_ranges"])
	require.EqualValues(t, 10, line["copy_engine_bytes"])
	require.InDelta(t, 0.75, line["full_sectors"], 1e-9, "the worse direction")
	require.InDelta(t, 200, line["predicted_ms"], 1e-6, "74 GB at 370 GB/s into the one that takes most")
	found.Strips = traffic{Loads: sectors{1, 8, 2, 1}, Stores: sectors{1, 8, 1, 1}}
	require.InDelta(t, 0.5, describe(v, plan, moved, map[moveKind]moveTraffic{kind: found})["full_sectors"], 1e-9, "of what kernels copy, if they copy")
}

func TestCountTrafficReportsToolErrors(t *testing.T) {
	v, _, _ := modeSwitch(t, "Qwen3-235B-A22B", layout.Expert, layout.Tensor)
	tool := filepath.Join(t.TempDir(), "tool")
	for body, want := range map[string]string{"echo worse >&2; exit 1": "worse", "echo []": "0 answers to 1 moves", "echo x": "invalid character"} {
		require.NoError(t, os.WriteFile(tool, []byte("#!/bin/sh\ncat > /dev/null\n"+body+"\n"), 0o700)) //nolint:gosec // it is run
		_, err := countTraffic(tool, v, []moveKind{{1, 0, 1, 0, 1}})
		require.ErrorContains(t, err, want)
	}
}
