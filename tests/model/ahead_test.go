package model

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestModelOfCopiesAhead checks ahead.pml: a flip uses only copies that equal the home's block at that time. Each rule
// is needed.
func TestModelOfCopiesAhead(t *testing.T) {
	whole := checkFile(t, "ahead.pml")
	require.Zero(t, whole.errors, whole.output)
	require.Greater(t, whole.states, 50_000, "the model lost behaviour")
	text, err := os.ReadFile("ahead.pml")
	require.NoError(t, err)
	for place := range whole.unreached() {
		_, line, _ := strings.Cut(place, ": ")
		n, err := strconv.Atoi(line)
		require.NoError(t, err)
		require.Contains(t, strings.Split(string(text), "\n")[n-1], "under_way[1]", "no run reaches this line; only with NO_MEMORY_UNTIL_IT_CAME do two copies run at a time")
	}
	for rule, sentence := range map[string]string{
		"NO_GENERATION":           "A copy is good if the generation reported before it began is the flip's.",
		"NO_FULL_IS_FINAL":        "A full block of a request is not written again in its generation.",
		"NO_WAIT":                 "The flip waits for copies in progress.",
		"NO_MEMORY_UNTIL_IT_CAME": "Memory is given back only when the copy into it has ended.",
	} {
		t.Run(rule, func(t *testing.T) {
			r := checkFile(t, "ahead.pml", "-D"+rule)
			require.Positive(t, r.errors, "nothing fails without: %s", sentence)
			source, story := r.violated(t)
			require.Contains(t, source, "/* SAME */", story)
		})
	}
}
