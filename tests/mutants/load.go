package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

//go:embed helpers.go.txt
var helpers string

// module is the folder of the packages, relative to the repository's root.
const module = "operator"

const overlayFile = "overlay.json"

// listed is the output of `go list` for a package.
type listed struct {
	Dir, ImportPath, Name, Export string
	GoFiles                       []string
}

func list(root, pkg string) (map[string]listed, listed, error) {
	command := exec.Command("go", "list", "-export", "-deps", "-json=Dir,ImportPath,Name,Export,GoFiles", "./"+pkg)
	command.Dir = filepath.Join(root, module)
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return nil, listed{}, fmt.Errorf("go list %s: %w", pkg, err)
	}
	all := map[string]listed{}
	var last listed
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var one listed
		if err := decoder.Decode(&one); errors.Is(err, io.EOF) {
			return all, last, nil // -deps lists the package itself last
		} else if err != nil {
			return nil, listed{}, err
		}
		all[one.ImportPath], last = one, one
	}
}

// instrument writes the package's files with all mutants, each inactive unless MUTANT has its number, and overlayFile
// for `go test`.
func instrument(root string, s suite, dir string) ([]*mutant, error) {
	all, pkg, err := list(root, s.folder)
	if err != nil {
		return nil, err
	}
	set := token.NewFileSet()
	var files []*ast.File
	var sources [][]byte
	for _, name := range pkg.GoFiles {
		source, err := os.ReadFile(filepath.Join(pkg.Dir, name))
		if err != nil {
			return nil, err
		}
		file, err := parser.ParseFile(set, filepath.Join(pkg.Dir, name), source, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files, sources = append(files, file), append(sources, source)
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}}
	from := importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) { return os.Open(all[path].Export) })
	if _, err := (&types.Config{Importer: from}).Check(pkg.ImportPath, set, files, info); err != nil {
		return nil, err
	}
	overlay := map[string]string{}
	put := func(name, text string) error {
		to := filepath.Join(dir, name)
		overlay[filepath.Join(pkg.Dir, name)] = to
		return os.WriteFile(to, []byte(text), 0o600)
	}
	var mutants []*mutant
	for i, file := range files {
		name := pkg.GoFiles[i]
		if len(s.files) > 0 && !slices.Contains(s.files, name) {
			continue
		}
		f := &finder{set: set, info: info, source: sources[i], file: filepath.Join(module, s.folder, name), next: len(mutants),
			judged: map[ast.Expr]bool{}}
		f.walk(file)
		mutants = append(mutants, f.mutants...)
		if err := put(name, rewrite(f.source, f.edits)); err != nil {
			return nil, err
		}
	}
	number(mutants)
	text := strings.NewReplacer("PACKAGE", pkg.Name, "COUNT", strconv.Itoa(len(mutants)+1)).Replace(helpers)
	if err := put("zz_mutants.go", text); err != nil {
		return nil, err
	}
	mapping, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		return nil, err
	}
	return mutants, os.WriteFile(filepath.Join(dir, overlayFile), mapping, 0o600)
}

// number distinguishes equal changes of one function.
func number(mutants []*mutant) {
	seen := map[string]int{}
	for _, m := range mutants {
		key := m.key()
		if seen[key]++; seen[key] > 1 {
			m.change += fmt.Sprintf(" #%d", seen[key])
		}
	}
}
