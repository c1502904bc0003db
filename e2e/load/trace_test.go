package load

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func newTrace(t *testing.T, seed uint64) *Trace {
	t.Helper()
	trace, err := NewTrace(seed, time.Minute)
	require.NoError(t, err)
	return trace
}

func TestSameSeedSameRequests(t *testing.T) {
	a, b, other := newTrace(t, 1), newTrace(t, 1), newTrace(t, 2)
	differ := 0
	for i := range 2 * a.Round() {
		require.Equal(t, a.At(i), b.At(i))
		if i < a.Round() && string(bytesOf(a.At(i).Prompt)) != string(bytesOf(other.At(i).Prompt)) {
			differ++
		}
		require.NotEqual(t, a.At(i).Seed, other.At(i).Seed)
	}
	require.Equal(t, a.Round(), differ, "another seed must give other prompts")
	late := a.At(a.Round()) // the same after 159 calls, or as the first
	require.Equal(t, late, newTrace(t, 1).At(a.Round()))
}

func bytesOf(prompt []uint32) []byte {
	out := make([]byte, len(prompt))
	for i, token := range prompt {
		out[i] = byte(token)
	}
	return out
}

func TestRequestsFitModel(t *testing.T) {
	trace := newTrace(t, 3)
	before := time.Duration(-1)
	greedy, sampled := 0, 0
	for i := range 3 * trace.Round() {
		r := trace.At(i)
		require.Equal(t, i, r.Index)
		require.GreaterOrEqual(t, r.Arrival, before, "request %d", i)
		require.Less(t, r.Arrival, time.Duration(i/trace.Round()+1)*time.Minute)
		before = r.Arrival
		require.NotEmpty(t, r.Prompt)
		require.LessOrEqual(t, len(r.Prompt), promptCap)
		require.GreaterOrEqual(t, r.MaxTokens, 2)
		require.LessOrEqual(t, r.MaxTokens, answerCap)
		for _, token := range r.Prompt {
			require.Less(t, token, uint32(256))
		}
		if r.Temperature == 0 {
			greedy++
		} else {
			sampled++
		}
	}
	require.InDelta(t, greedy, sampled, 1)
}

// TestTruncatedAnswersDifferInLength: with one length for all, concurrent requests would end together, and flips would
// find no KV.
func TestTruncatedAnswersDifferInLength(t *testing.T) {
	trace, cut := newTrace(t, 3), newTrace(t, 3)
	cut.MaxAnswer = 50
	lengths := map[int]int{}
	for i := range 200 {
		whole, short := trace.At(i).MaxTokens, cut.At(i).MaxTokens
		if whole <= cut.MaxAnswer {
			require.Equal(t, whole, short)
			continue
		}
		require.LessOrEqual(t, short, cut.MaxAnswer)
		require.GreaterOrEqual(t, short, cut.MaxAnswer/2)
		lengths[short]++
	}
	for length, n := range lengths {
		require.LessOrEqual(t, n, 20, "%d tokens", length)
	}
}

// Lines of the trace with the same blocks begin with the same tokens; at the first different block the tokens differ.
func TestSharedPrefixes(t *testing.T) {
	trace := newTrace(t, 4)
	shared, parted := 0, 0
	for i := range trace.lines {
		for j := range i {
			a, b := trace.lines[i].HashIDs, trace.lines[j].HashIDs
			same := 0
			for same < min(len(a), len(b)) && a[same] == b[same] {
				same++
			}
			p, q := trace.At(i).Prompt, trace.At(j).Prompt
			n := min(same*blockBytes, len(p), len(q))
			require.Equal(t, p[:n], q[:n], "requests %d and %d share %d blocks", i, j, same)
			if same > 0 {
				shared++
			}
			if end := (same + 1) * blockBytes; same < min(len(a), len(b)) && end <= min(len(p), len(q)) {
				require.NotEqual(t, p[n:end], q[n:end], "requests %d and %d part after %d blocks", i, j, same)
				parted++
			}
		}
	}
	require.Positive(t, shared)
	require.Positive(t, parted)
}

func TestDiffers(t *testing.T) {
	result := func(tokens ...Token) *Result { return &Result{Request: Request{Index: 5}, Tokens: tokens} }
	a := result(Token{ID: 1, Hash: "x"}, Token{ID: 2, Hash: "y"})
	require.Empty(t, a.Differs(result(Token{ID: 1, Hash: "x"}, Token{ID: 2, Hash: "y"})))
	require.Contains(t, a.Differs(result(Token{ID: 1, Hash: "x"})), "request 5: 2 and 1 tokens")
	require.Contains(t, a.Differs(result(Token{ID: 1, Hash: "x"}, Token{ID: 3, Hash: "y"})), "token 1")
	require.Contains(t, a.Differs(result(Token{ID: 1, Hash: "z"}, Token{ID: 2, Hash: "y"})), "token 0")
}

func TestTraceKeepFiltersRequests(t *testing.T) {
	trace, err := NewTrace(3, time.Second)
	require.NoError(t, err)
	rounds, second := trace.Round(), trace.At(1).Prompt
	require.NoError(t, trace.Keep(func(r Request) bool { return r.Index != 0 }))
	require.Equal(t, rounds-1, trace.Round())
	require.Equal(t, second, trace.At(0).Prompt)
	require.Equal(t, second, trace.At(rounds-1).Prompt, "in the next round too")
	require.Error(t, trace.Keep(func(Request) bool { return false }))
	require.Equal(t, rounds-1, trace.Round(), "an error changes nothing")

	sampled := 0
	for i := range trace.Round() {
		if trace.At(i).Temperature > 0 {
			sampled++
		}
	}
	require.NotZero(t, sampled)
	trace.Greedy = true
	for i := range trace.Round() {
		require.Zero(t, trace.At(i).Temperature)
		require.InDelta(t, 1, trace.At(i).TopP, 0)
	}
}
