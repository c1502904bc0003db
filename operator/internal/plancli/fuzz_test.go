package plancli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// quoted matches the text of a file that an error quotes.
var quoted = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// A result is a MoEDeployment that the API server could store; an error is one line without wording of libraries.
func FuzzDeployment(f *testing.F) {
	examples, err := filepath.Glob("../../../examples/*/*.yaml")
	require.NoError(f, err)
	require.NotEmpty(f, examples)
	for _, file := range examples {
		text, err := os.ReadFile(file)
		require.NoError(f, err)
		f.Add(text)
	}
	const head = "apiVersion: serving.tangram.dev/v1alpha2\nkind: MoEDeployment\n"
	for _, text := range []string{
		"", "---\n...\n", "a: &a [*a]\n", "{\"kind\": \"List\", \"items\": [1]}", "apiVersion: v1\nkind: List\nitems:\n- kind: List\n  items: []\n",
		head + "spec: {replicas: many}\n", head + "spec: {memory: {weights: 1Q}}\n", head + "spec: {engine: {env: [{name: a, value: 1}]}}\n---\n: :\n",
		head + "status: {conditions: [{lastTransitionTime: now}]}\n", head + "metadata: {name: a}\nspec: {replicas: 3, replicas: 4}\n", head + "? [a]\n: b\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := deployment(text, "")
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			said := quoted.ReplaceAllString(err.Error(), "")
			for _, word := range []string{"unmarshal", "Unmarshal", "json:", "yaml:", "Go struct", "invalid character"} {
				require.NotContains(t, said, word)
			}
			return
		}
		require.Equal(t, "MoEDeployment", d.Kind)
		require.Positive(t, d.Spec.Replicas)
		require.Positive(t, d.Spec.RanksPerPod)
		require.True(t, strings.HasPrefix(d.APIVersion, "serving.tangram.dev/"))
	})
}
