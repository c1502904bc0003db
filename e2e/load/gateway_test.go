package load

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGatewayCountsAreRead(t *testing.T) {
	const plain = "# TYPE tangram_gateway_conflicting_tokens_total counter\n# TYPE tangram_gateway_duplicate_tokens_total counter\n" +
		"# TYPE tangram_gateway_lost_requests_total counter\ntangram_gateway_conflicting_tokens_total 1\ntangram_gateway_duplicate_tokens_total 2\ntangram_gateway_lost_requests_total 3\n" +
		"# TYPE tangram_gateway_orphaned_requests_total counter\ntangram_gateway_orphaned_requests_total 0\n"
	c, err := ReadGatewayCounts(strings.NewReader(plain))
	require.NoError(t, err)
	require.Equal(t, GatewayCounts{Conflicts: 1, Duplicates: 2, Lost: 3}, c)
	c, err = ReadGatewayCounts(strings.NewReader(plain + "# TYPE tangram_gateway_replays_total counter\n" +
		"tangram_gateway_replays_total{cause=\"a\"} 4\ntangram_gateway_replays_total{cause=\"b\"} 5\n"))
	require.NoError(t, err)
	require.InDelta(t, 9, c.Replays, 0)
	require.InDelta(t, 18, c.Plus(c).Replays, 0)
	_, err = ReadGatewayCounts(strings.NewReader("# TYPE tangram_gateway_duplicate_tokens_total counter\ntangram_gateway_duplicate_tokens_total 2\n"))
	require.ErrorContains(t, err, "no tangram_gateway_")
}
