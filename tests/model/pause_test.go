package model

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Steps that pause for an attempt (pause.pml): all leave the same ones out, and nobody waits for ever. Each rule is needed for that.
func TestModelOfPauses(t *testing.T) {
	whole := checkFile(t, "pause.pml")
	require.Zero(t, whole.errors, whole.output)
	require.Greater(t, whole.states, 5_000, "the model lost its behaviour")
	require.Empty(t, whole.unreached())
	for _, r := range []struct {
		rule, claim, sentence string
		holds                 []string // the claim holds so
	}{
		{"NO_ALIKE", "ALIKE", "Every member hears in the exchange that one of them wants no step, so all leave it out alike.", nil},
		{"NO_BOUND", "SERVES", "Steps pause for ten seconds of an attempt at most, so that a world whose operator died in it serves on.", nil},
		{"NO_END", "SERVES", "A pause ends with the attempt: it is asked for anew in each exchange.", nil},
		// With a clock it would only take until that is over.
		{"NO_MORE", "SERVES", "A flip that KV does not allow pauses no more: requests must end first.", []string{"-DNO_BOUND", "-DNO_DEATH"}},
	} {
		t.Run(r.rule, func(t *testing.T) {
			if r.holds != nil {
				with := checkFile(t, "pause.pml", r.holds...)
				require.Zero(t, with.errors, with.output)
			}
			got := checkFile(t, "pause.pml", append([]string{"-D" + r.rule}, r.holds...)...)
			require.Positive(t, got.errors, "nothing fails without: %s", r.sentence)
			source, story := got.violated(t)
			require.Contains(t, source, "/* "+r.claim+" */", story)
		})
	}
}
