package walk

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/tests/internal/worlds"
)

// Agents fetch weights and KV through a communication library (UCX, over TCP here), in either slab format: clients get
// transformers' tokens during transitions and at rest, and no byte uses another transport.
func TestAgentsFetchByCommLibrary(t *testing.T) {
	for _, format := range worlds.Cases(1, []string{"granule-major", "row-major"}) {
		t.Run(format, func(t *testing.T) {
			g := readGolden(t, "tiny")
			checkpoint, err := harness.Checkpoint(t.Context(), worlds.Root, "tiny")
			require.NoError(t, err)
			t.Setenv("UCX_NET_DEVICES", "lo") // other interfaces may come and go
			w := start(t, harness.Options{Pods: harness.Pods(4), Checkpoint: checkpoint, Granule: 8, SlabFormat: format, Wire: "ucx"})
			apply(t, w, 1, "ExpertParallel")
			for _, a := range status(t, w) {
				require.Contains(t, a.Address.CommLibrary, "ucx ", "told in its status")
			}
			for _, s := range []stop{{3, "ExpertParallel", nil}, {3, "TensorParallel", nil}, {4, "ExpertParallel", nil}, {2, "TensorParallel", nil}} {
				t.Run(fmt.Sprint(s.ranks, s.mode), func(t *testing.T) {
					var record *harness.Record
					g.askUntil(t, w, func() { record = apply(t, w, s.ranks, s.mode) })
					require.NoError(t, g.ask(t.Context(), w))
					require.Positive(t, record.Bytes.Wire)
					require.Zero(t, record.Bytes.TCP)
				})
			}
		})
	}
}
