package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// changes returns the finder's changes of a function's body, and the text with all of them.
func changes(t *testing.T, body string) ([]string, string) {
	t.Helper()
	source := "package p\n\ntype list []int\n\nfunc f(a, b int, ok bool, l list) bool {\n" + body + "\n}\n"
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "p.go", source, 0)
	require.NoError(t, err)
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}}
	_, err = (&types.Config{}).Check("p", set, []*ast.File{file}, info)
	require.NoError(t, err)
	f := &finder{set: set, info: info, source: []byte(source), file: "p.go", judged: map[ast.Expr]bool{}}
	f.walk(file)
	var out []string
	for _, m := range f.mutants {
		out = append(out, m.change)
	}
	text := rewrite(f.source, f.edits)
	_, err = parser.ParseFile(token.NewFileSet(), "p.go", text, 0)
	require.NoError(t, err, text)
	return out, text
}

func TestMutationsOfStatements(t *testing.T) {
	for body, want := range map[string][]string{
		"return a < b":                          {"a < b -> true", "a < b -> false", "a < b -> a <= b"},
		"return ok && !(a == b)":                {"ok -> true", "ok -> false", "a == b -> true", "a == b -> false"},
		"return true":                           {"true -> false"},
		"return len(l) > 0":                     {"len(l) > 0 -> true", "len(l) > 0 -> false"}, // >= 0 is always true
		"a = b; return ok":                      {"a = b -> ", "ok -> true", "ok -> false"},
		"a++; return ok":                        {"a++ -> ", "ok -> true", "ok -> false"},
		"for a < b { return ok }; panic(1)":     {"a < b -> false", "a < b -> a <= b", "ok -> true", "ok -> false"}, // true: no end
		"a = min(a, b); return ok":              {"a = min(a, b) -> ", "min(a, b) -> max(a, b)", "ok -> true", "ok -> false"},
		"l = make(list, a, a+b); return ok":     {"l = make(list, a, a+b) -> ", "ok -> true", "ok -> false"}, // room is no behaviour
		"return a*2-b == 1+1":                   {"a*2-b == 1+1 -> true", "a*2-b == 1+1 -> false", "a*2-b -> a*2 + b", "a*2 -> a + 2"},
		"switch a { case 1: b = 2 }; return ok": {"b = 2 -> ", "ok -> true", "ok -> false"},
	} {
		got, text := changes(t, body)
		slices.Sort(got)
		slices.Sort(want)
		require.Equal(t, want, got, "%s\n%s", body, text)
	}
}

// Each entry of the list names an existing mutant. `make mutants` checks that it survives.
func TestExplainedMutantsExist(t *testing.T) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	explained, err := readExplained("explained.txt")
	require.NoError(t, err)
	known := map[string]bool{}
	for _, s := range suites {
		mutants, err := instrument(root, s, t.TempDir())
		require.NoError(t, err)
		require.NotEmpty(t, mutants)
		for _, m := range mutants {
			require.False(t, known[m.key()], "two of one name: %s", m.key())
			known[m.key()] = true
		}
	}
	for key := range explained {
		require.True(t, known[key], "no such mutant: %s", key)
	}
}
