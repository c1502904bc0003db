package walk

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
)

// An engine with another KV block size, or another declared setting, does not join: the driver names the setting and
// the engine before anything moves, and the requests in flight get their tokens. A replacement pod with the same
// settings joins.
func TestEngineWithOtherSettingsDoesNotJoin(t *testing.T) {
	w := startTiny(t, kitEngines(t, harness.Options{Pods: []int{1, 1, 1}, MaxTokens: flightTokens, PodFlags: map[int][]string{
		2: {"--block-tokens", "32"}, 3: {"--max-batch-tokens", "128"}}}))
	apply(t, w, 2, "ExpertParallel")
	trace := newTrace(t, 13, 30*time.Second)
	flights := fly(t, w, trace, 0, 6)
	_, err := w.Apply(t.Context(), 3, "ExpertParallel", nil, nil)
	require.ErrorContains(t, err, "kv_block_tokens is 32 at the engine of member ")
	require.ErrorContains(t, err, "the future rank 2, but 16 at the engine of rank 0, member ")
	for _, f := range flights {
		requireSums(t, f.land(t))
	}
	audit(t, w, 2)

	w.KillPod(2)
	_, err = w.AddPod(t.Context(), 1)
	require.NoError(t, err)
	_, err = w.Apply(t.Context(), 3, "ExpertParallel", nil, nil)
	require.ErrorContains(t, err, "max_batch_tokens is 128 at the engine of member ")
	require.ErrorContains(t, err, "the future rank 2, but 24 at the engine of rank 0, member ")
	audit(t, w, 2)

	w.KillPod(3)
	_, err = w.AddPod(t.Context(), 1)
	require.NoError(t, err)
	flights = fly(t, w, trace, 6, 6)
	apply(t, w, 3, "ExpertParallel")
	for _, f := range flights {
		requireSums(t, f.land(t))
	}
	audit(t, w, 3)
}
