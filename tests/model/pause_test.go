package model

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestModelOfPauses checks pause.pml: all ranks omit the same steps, and no rank waits forever. Each rule is needed.
func TestModelOfPauses(t *testing.T) {
	whole := checkFile(t, "pause.pml")
	require.Zero(t, whole.errors, whole.output)
	require.Greater(t, whole.states, 5_000, "the model lost behaviour")
	require.Empty(t, whole.unreached())
	for _, r := range []struct {
		rule, claim, sentence string
		holds                 []string // the claim holds with these
	}{
		{"NO_ALIKE", "ALIKE", "The exchange tells every member that one of them wants no step, so all leave it out.", nil},
		{"NO_BOUND", "SERVES", "An attempt pauses steps for at most ten seconds, so a world whose operator died in it continues to serve.", nil},
		{"NO_END", "SERVES", "Each exchange requests the pause again, so it ends with its attempt.", nil},
		// NO_BOUND: otherwise the clock would also end this pause. NO_DEATH: without the clock, a death of the operator
		// breaks SERVES.
		{"NO_MORE", "SERVES", "A flip that KV does not allow pauses no more, because requests must end first.", []string{"-DNO_BOUND", "-DNO_DEATH"}},
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
