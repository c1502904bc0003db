package agentclient

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// The layout that 32 agents of a world report is kept once, and only while it is referenced. A layout that does not
// match its hash is not shared.
func TestAgentsShareOneLayoutCopy(t *testing.T) {
	all := told("x", nil)
	hash, err := layout.Hash(all.Layout)
	require.NoError(t, err)
	all.LayoutHash = hash
	complete := func(change func(*tangramv1.Layout)) *tangramv1.StatusResponse {
		s := proto.CloneOf(all)
		change(s.Layout)
		_, err := (*known)(nil).complete(s)
		require.NoError(t, err)
		return s
	}
	same := func(*tangramv1.Layout) {}
	liar := complete(func(l *tangramv1.Layout) { l.Epoch = 9 })
	require.EqualValues(t, 9, liar.Layout.Epoch)
	func() {
		first := complete(same)
		require.NotSame(t, liar.Layout, first.Layout)
		for range 31 {
			require.Same(t, first.Layout, complete(same).Layout)
		}
		require.True(t, proto.Equal(all.Layout, first.Layout))
	}()
	require.Eventually(t, func() bool {
		runtime.GC()
		layouts.mu.Lock()
		defer layouts.mu.Unlock()
		_, there := layouts.of[string(hash)]
		return !there
	}, time.Minute, 10*time.Millisecond)
}
