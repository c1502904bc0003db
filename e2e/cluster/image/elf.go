package image

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// linker finds shared libraries like the dynamic linker.
type linker struct {
	cache map[string][]string // soname to paths, from the machine's ld.so.cache
	own   map[string]string   // soname to path, of files that are in the image anyway
}

// newLinker reads the machine's library cache.
func newLinker(ctx context.Context) (*linker, error) {
	program := "/sbin/ldconfig"
	if found, err := exec.LookPath("ldconfig"); err == nil {
		program = found
	}
	output, err := exec.CommandContext(ctx, program, "-p").Output()
	if err != nil {
		return nil, fmt.Errorf("%s -p, to find shared libraries: %w", program, err)
	}
	return &linker{cache: parseCache(string(output)), own: map[string]string{}}, nil
}

// parseCache parses lines `\tlibm.so.6 (libc6,x86-64) => /lib/x86_64-linux-gnu/libm.so.6`.
func parseCache(text string) map[string][]string {
	cache := map[string][]string{}
	for line := range strings.Lines(text) {
		left, path, ok := strings.Cut(strings.TrimSpace(line), " => ")
		name, _, ok2 := strings.Cut(left, " (")
		if ok && ok2 {
			cache[name] = append(cache[name], path)
		}
	}
	return cache
}

// elfFile has the parts of a file that the linker needs.
type elfFile struct {
	class   elf.Class
	machine elf.Machine
	interp  string   // path of the interpreter; empty: static, or a library
	needed  []string // sonames
	search  []string // RPATH and RUNPATH, $ORIGIN replaced
}

// errNotELF is returned for scripts, configuration and the like.
var errNotELF = errors.New("not an ELF file")

func readELF(path string) (*elfFile, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	magic := make([]byte, len(elf.ELFMAG))
	if _, err := io.ReadFull(file, magic); err != nil || string(magic) != elf.ELFMAG {
		return nil, fmt.Errorf("%s: %w", path, errNotELF)
	}
	object, err := elf.NewFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	result := &elfFile{class: object.Class, machine: object.Machine}
	for _, program := range object.Progs {
		if program.Type == elf.PT_INTERP {
			text, err := io.ReadAll(program.Open())
			if err != nil {
				return nil, fmt.Errorf("%s: interpreter: %w", path, err)
			}
			result.interp = strings.TrimRight(string(text), "\x00")
		}
	}
	if object.SectionByType(elf.SHT_DYNAMIC) == nil {
		return result, nil
	}
	if result.needed, err = object.ImportedLibraries(); err != nil {
		return nil, fmt.Errorf("%s: libraries: %w", path, err)
	}
	for _, tag := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
		values, err := object.DynString(tag)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", path, tag, err)
		}
		for _, value := range values {
			value = strings.NewReplacer("$ORIGIN", filepath.Dir(path), "${ORIGIN}", filepath.Dir(path)).Replace(value)
			result.search = append(result.search, filepath.SplitList(value)...)
		}
	}
	return result, nil
}

// closure returns the interpreters and shared libraries that the files need, directly or indirectly, sorted. Files that
// are not ELF, or are static, need none.
func (l *linker) closure(files []string) ([]string, error) {
	found := map[string]bool{}
	queue := slices.Clone(files)
	for len(queue) > 0 {
		path := queue[0]
		queue = queue[1:]
		object, err := readELF(path)
		if errors.Is(err, errNotELF) {
			continue
		}
		if err != nil {
			return nil, err
		}
		next := []string{}
		if object.interp != "" {
			next = append(next, object.interp)
		}
		for _, soname := range object.needed {
			library, err := l.find(soname, object)
			if err != nil {
				return nil, fmt.Errorf("%s needs %w", path, err)
			}
			next = append(next, library)
		}
		for _, library := range next {
			if !found[library] {
				found[library] = true
				queue = append(queue, library)
			}
		}
	}
	var all []string
	for path := range found {
		all = append(all, path)
	}
	slices.Sort(all)
	// The interpreter is also a library under another path; both stay.
	return all, nil
}

// find finds a library for an object, of the same ELF class and machine.
func (l *linker) find(soname string, of *elfFile) (string, error) {
	var candidates []string
	if strings.Contains(soname, "/") {
		candidates = []string{soname}
	} else {
		for _, dir := range of.search {
			candidates = append(candidates, filepath.Join(dir, soname))
		}
		candidates = append(candidates, l.cache[soname]...)
		if path, ok := l.own[soname]; ok {
			candidates = append(candidates, path)
		}
	}
	for _, path := range candidates {
		if library, err := readELF(path); err == nil && library.class == of.class && library.machine == of.machine {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s, which is not on this machine (looked at %d places: %s)", soname, len(candidates), strings.Join(candidates, ", "))
}
