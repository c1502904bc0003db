package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

func TestNumbersHaveSeparators(t *testing.T) {
	require.Equal(t, []string{"0", "999", "26,668", "1,000,000", "-1,000"}, []string{thousands(0), thousands(999), thousands(26668), thousands(1000000), thousands(-1000)})
	require.Equal(t, []string{"0.0", "36.7", "1,100.0"}, []string{mb(0), mb(uint64(36715008)), mb(1099999999)})
	require.Equal(t, "1,364", milliseconds(1.3641))
}

func TestMoved_WhenKVMoves(t *testing.T) {
	x := &transition{Name: "EP -> TP", Record: &harness.Record{ExpertBoundBytes: 78151680, TotalSeconds: 1.24, Bytes: harness.Bytes{TCP: 78151680, KV: 46103040}}}
	require.Equal(t, "EP -> TP: 78.2 MB of weights (lower bound 78.2 MB) and 46.1 MB of KV cache moved in 1.2 s", moved(x))
	x.Record.Bytes.KV, x.Record.DenseBytes = 0, 1e6
	require.Equal(t, "EP -> TP: 78.2 MB of weights (lower bound 79.2 MB) moved in 1.2 s", moved(x))
}

func TestPlacementOfLayout_WhenExpertsAreSharded(t *testing.T) {
	whole := &tangramv1.Layout{Members: make([]*tangramv1.Member, 2), Layers: []*tangramv1.LayerLayout{{}, {ExpertGroupSize: 1, Experts: []*tangramv1.ExpertGroup{
		{Ranks: []uint32{1}, Slots: []uint32{3, 0, 1}}, {Ranks: []uint32{0}, Slots: []uint32{2}}}}}}
	require.Equal(t, &placement{1, [][]int{{1}, {0, 2}}}, placementOf(whole))
	sharded := &tangramv1.Layout{Members: make([]*tangramv1.Member, 2), Layers: []*tangramv1.LayerLayout{{ExpertGroupSize: 2, Experts: []*tangramv1.ExpertGroup{
		{Ranks: []uint32{0, 1}, Slots: []uint32{1, 2, 3}}}}}}
	require.Equal(t, &placement{2, [][]int{{0, 1, 2}, {0, 1, 2}}}, placementOf(sharded))
	require.Nil(t, placementOf(nil))
}

func TestLongRequest_WhenNoTokenArrived(t *testing.T) {
	r := longRequest(options{ranks: 4, pause: 3 * time.Second}, &load.Counters{})
	require.Equal(t, 800, r.MaxTokens, "32 s at 40 ms")
	require.Len(t, r.Prompt, 32)
	r = longRequest(options{ranks: 4, pause: time.Hour}, &load.Counters{})
	require.Equal(t, longestStream, r.MaxTokens)
}

// Columns use standard terms and units.
func TestTables_WhenReportIsComplete(t *testing.T) {
	r := &report{Requests: 1251, Tokens: 26668, Compared: true, LongestGap: 1.364, Broken: []string{"2 requests lost"},
		Transitions: []*transition{{Name: "EP -> TP", Streams: 8, LongestGap: .139, Silent: 1.2, Ratio: 14.1, Seen: seen{GapBefore: .1, GapAfter: .157}, Record: &harness.Record{ExpertBytes: 1178151680, ExpertBoundBytes: 78151680, Bytes: harness.Bytes{TCP: 78151680, KV: 46103040, KVAhead: 45588480}}}},
		Heat:        &heat{Without: .638, Promised: 1, Measured: .9, Moves: 70, Bytes: 17203200, Why: "70 experts move"},
		Acts:        []*act{{Name: rankActName, Requests: 8, WorstGap: 1.364, Repaired: .59, Whole: 3.8, ReadAgain: 23101440}}}
	var out strings.Builder
	r.printTable(&out)
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{"expert MB lower bound MB non-expert MB KV MB KV in flips MB", "EP -> TP 8 78.2 1,178.2 78.2 0.0 46.1 0.5",
		"longest inter-token latency ms stall ms", "EP -> TP 0 0 0 100, 157 139 1,200 14.1", "rebalance of hot experts 0.638 1.000 0.900 70 17.2", "recovery time s time to Ready s reloaded from checkpoint MB",
		"kill -9 of a rank 8 0.00 1.36 0.59 3.80 23.1", "1,251 requests, 26,668 tokens", "mismatched tokens: 0", "requests that differ from the one-rank run: 0 broken promise: 2 requests lost"} {
		require.Contains(t, text, want)
	}
}
