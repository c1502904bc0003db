package model

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a flip takes of copies that were made ahead of it is what the home has then (ahead.pml); and each rule is needed for that.
func TestModelOfCopiesAhead(t *testing.T) {
	whole := checkFile(t, "ahead.pml")
	require.Zero(t, whole.errors, whole.output)
	require.Greater(t, whole.states, 50_000, "the model lost its behaviour")
	text, err := os.ReadFile("ahead.pml")
	require.NoError(t, err)
	for place := range whole.unreached() {
		_, line, _ := strings.Cut(place, ": ")
		n, err := strconv.Atoi(line)
		require.NoError(t, err)
		require.Contains(t, strings.Split(string(text), "\n")[n-1], "under_way[1]", "nothing reaches it; two pulls at a time are there with NO_MEMORY_UNTIL_IT_CAME alone")
	}
	for rule, sentence := range map[string]string{
		"NO_GENERATION":           "A copy is good if the generation that was told before it began is that of the flip.",
		"NO_FULL_IS_FINAL":        "As long as a request has its generation a block of it that is full is not written.",
		"NO_WAIT":                 "The flip waits for what is being written.",
		"NO_MEMORY_UNTIL_IT_CAME": "What is being written is given back when it came.",
	} {
		t.Run(rule, func(t *testing.T) {
			r := checkFile(t, "ahead.pml", "-D"+rule)
			require.Positive(t, r.errors, "nothing fails without: %s", sentence)
			source, story := r.violated(t)
			require.Contains(t, source, "/* SAME */", story)
		})
	}
}
