package api_test

import (
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"tangram.dev/tests/internal/apiserver"
)

var (
	goTest   = regexp.MustCompile("`(Test[A-Z][A-Za-z0-9_]*)(?:/[^`]*)?`")
	ccTest   = regexp.MustCompile("`(?:[A-Z][A-Za-z]*/)?([A-Z][A-Za-z0-9]*)\\.(\\*|[A-Z][A-Za-z0-9]*)`")
	fuzzTest = regexp.MustCompile("`([a-z_]+_fuzz)`")
	isTest   = regexp.MustCompile(`(?m)^func (Test\w+)\(|^\s*TEST(?:_F|_P)?\((\w+),\s*(\w+)\)|tangram_fuzz\((\w+) `)
)

// Every test that a document names must exist, because it supports a claim.
func TestDocumentsNameExistingTests(t *testing.T) {
	there, tree := map[string]bool{}, os.DirFS(apiserver.Root())
	for _, folder := range []string{"agent", "e2e", "operator", "tests", "api"} {
		require.NoError(t, fs.WalkDir(tree, folder, func(path string, entry fs.DirEntry, err error) error {
			if name := entry.Name(); err != nil || entry.IsDir() || !strings.HasSuffix(name, "_test.go") && !strings.HasSuffix(name, "_test.cc") && name != "CMakeLists.txt" {
				return err
			}
			text, err := fs.ReadFile(tree, path)
			for _, m := range isTest.FindAllStringSubmatch(string(text), -1) {
				there[m[1]+m[4]] = true
				there[m[2]+".*"], there[m[2]+"."+m[3]] = true, true
			}
			return err
		}))
	}
	require.Greater(t, len(there), 500)
	named := 0
	for _, document := range []string{"dispatch.md", "failure-modes.md", "kubernetes.md", "security.md", "testing.md"} {
		text, err := fs.ReadFile(tree, "docs/"+document)
		require.NoError(t, err)
		var names []string
		for _, m := range goTest.FindAllStringSubmatch(string(text), -1) {
			names = append(names, m[1])
		}
		for _, m := range ccTest.FindAllStringSubmatch(string(text), -1) {
			names = append(names, m[1]+"."+m[2])
		}
		for _, m := range fuzzTest.FindAllStringSubmatch(string(text), -1) {
			names = append(names, m[1])
		}
		for _, name := range names {
			require.True(t, there[name], "%s names %s, which is no test", document, name)
		}
		named += len(names)
	}
	require.Greater(t, named, 80)
}
