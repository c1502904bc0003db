package driver

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/store"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// The store keeps the newest records, and does not grow with the age of a world.
func TestStoreKeepsNewestTransitions(t *testing.T) {
	s := &store.Memory{}
	save := SaveTo(s)
	for i := range 3 * keptTransitions {
		require.NoError(t, save(t.Context(), &Record{World: "w", Epoch: uint64(i)}))
	}
	var kept []*Record
	_, err := store.Load(t.Context(), s, keyTransitions, &kept)
	require.NoError(t, err)
	require.Len(t, kept, keptTransitions)
	require.EqualValues(t, 2*keptTransitions, kept[0].Epoch)
	require.EqualValues(t, 3*keptTransitions-1, kept[keptTransitions-1].Epoch)
}

// Requests of a leaver have moved elsewhere by the end.
func TestReservedTokensExcludeLeavers(t *testing.T) {
	a, b := says(layoutOf(4, "a", "b", "c"), "a", "b"), says(layoutOf(4, "a", "b", "c"), "c")
	for i, tokens := range []uint64{30, 50} {
		a.Ranks[i].Engine.KvReservedTokens = tokens
	}
	b.Ranks[0].Engine.KvReservedTokens = 1000
	most, mean := reserved(map[string]bool{"a": true, "b": true, "c": false}, map[int]*tangramv1.StatusResponse{0: a, 1: b})
	require.EqualValues(t, []uint64{50, 40}, []uint64{most, mean})
	most, mean = reserved(nil, nil)
	require.Zero(t, most+mean)
}

func TestKVBoundMatchesAgentPlan(t *testing.T) {
	plan, err := os.ReadFile("../../../agent/kv/plan.h")
	require.NoError(t, err)
	require.Contains(t, string(plan), fmt.Sprintf("kLopsided = %v;", KVBound))
}
