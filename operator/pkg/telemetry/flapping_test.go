package telemetry

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Each gateway reports its own sessions.
func TestFlappingSessionsAreReported(t *testing.T) {
	p := newPlay(1)
	reads := p.reads()
	m := NewMerger(reads[0].Report.World)
	s, err := m.Take(p.now, reads)
	require.NoError(t, err)
	require.Empty(t, s.Flapping)
	p.pass(1)
	reads = p.reads()
	rank := reads[0].Report.Ranks[0]
	rank.Flapping = true
	s, err = m.Take(p.now, reads)
	require.NoError(t, err)
	require.Equal(t, []Session{{Gateway: reads[0].Report.Gateway, Member: rank.Member}}, s.Flapping)
}
