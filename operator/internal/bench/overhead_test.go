package bench

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/layout"
)

// Three layers of Qwen3-235B by hand. In mode TensorParallel, 4 KV heads on 8 ranks are stored twice. A spare bank has
// the size of a rank's experts of one layer. A flip changes one layer.
func TestModeSwitchMemoryOverhead(t *testing.T) {
	views, err := publicViews()
	require.NoError(t, err)
	whole, err := find(views, publishedModel)
	require.NoError(t, err)
	v, err := firstLayers(whole, 3)
	require.NoError(t, err)
	p := v.Proto
	const tokens = overheadRequests * overheadTokens
	bank := uint64(p.Experts) / modelRanks * uint64(v.Granules) * p.GranuleBytes
	for _, spare := range []uint64{1, 2} {
		o, err := overheadCase(v, layout.Expert, layout.Tensor, uint32(spare))
		require.NoError(t, err)
		require.EqualValues(t, (3+spare-1)/spare, o.flips)
		kv := 3 * uint64(p.KvHeads) * tokens * p.KvHeadTokenBytes
		require.Equal(t, []uint64{kv / modelRanks, 2 * kv / modelRanks}, []uint64{o.kvBefore, o.kvAfter})
		require.Equal(t, o.weights+spare*bank, o.peakWeights)
		// A rank has all four heads of its own requests, and gets one head of all other requests.
		moves := spare * tokens / 8 * 7 * p.KvHeadTokenBytes
		require.LessOrEqual(t, o.peak, o.weights+spare*bank+o.kvAfter+moves)
		require.Greater(t, o.peak, o.rest)
		back, err := overheadCase(v, layout.Tensor, layout.Expert, uint32(spare))
		require.NoError(t, err)
		require.Equal(t, []uint64{o.kvAfter, o.kvBefore}, []uint64{back.kvBefore, back.kvAfter})
	}
}
