package walk

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
)

// Prompts with a known beginning go to the rank that has it cached, and after a transition to the rank that has it
// then: everything cached is found. In an idle world, by load alone, each would go to the same rank.
func TestDirectoryFollowsCache(t *testing.T) {
	const chats, shared, own = 6, 64, 8
	w := startTiny(t, harness.Options{Pods: []int{1, 1, 1}})
	apply(t, w, 3, "ExpertParallel")
	o := newTeller(t, w)
	sent := 0
	ask := func(chat int) load.Request {
		prompt := make([]uint32, 0, shared+own)
		for i := range shared {
			prompt = append(prompt, uint32(1+(chat*37+i*11)%200))
		}
		sent++
		for i := range own {
			prompt = append(prompt, uint32(1+(sent*13+i)%200))
		}
		return load.Request{Index: sent, Prompt: prompt, MaxTokens: 3, TopP: 1}
	}
	answered := make(chan *load.Result, chats)
	for chat := range chats { // concurrently, so that they are distributed
		request := ask(chat)
		go func() { answered <- client(w).Do(t.Context(), request) }()
	}
	for range chats {
		require.NoError(t, (<-answered).Err)
	}
	ended := func() uint64 {
		t.Helper()
		var reused uint64
		require.Eventually(t, func() bool {
			s := o.take()
			reused = s.Total.ReusedTokens
			return s.Total.Finished >= uint64(sent)
		}, time.Minute, 100*time.Millisecond)
		return reused
	}
	before := ended()
	for _, stop := range []stop{even(3), even(2), {2, "TensorParallel", nil}, even(2)} {
		if sent > chats { // not the first one, which is cached already
			apply(t, w, stop.ranks, stop.mode)
		}
		time.Sleep(time.Second) // engines report four times a second
		for chat := range chats {
			require.NoError(t, client(w).Do(t.Context(), ask(chat)).Err)
			ended() // until its rank's report a gateway counts it as running; the same report has its cached blocks
		}
		now := ended()
		require.EqualValues(t, chats*shared, now-before, "%d ranks, %s", stop.ranks, stop.mode)
		before = now
	}
}
