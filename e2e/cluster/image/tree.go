package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// expand replaces folders by their content: files, links that stay within the folder, and subfolders. `exclude` omits
// paths of the image, or names without a slash at any depth; both may have wildcards (path.Match).
func expand(files []File, exclude []string) ([]entry, error) {
	for _, pattern := range exclude {
		if _, err := path.Match(pattern, ""); err != nil {
			return nil, fmt.Errorf("exclude %q: %w", pattern, err)
		}
	}
	var all []entry
	for _, file := range files {
		info, err := os.Stat(file.Source)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			all = append(all, entry{path: strings.TrimPrefix(file.Target, "/"), source: file.Source})
			continue
		}
		below, err := walk(file, exclude)
		if err != nil {
			return nil, err
		}
		all = append(all, below...)
	}
	seen := map[string]string{}
	for _, e := range all {
		if other, twice := seen[e.path]; twice {
			return nil, fmt.Errorf("/%s comes from two places: %s and %s", e.path, other, e.source)
		}
		seen[e.path] = e.source
	}
	return all, nil
}

func walk(tree File, exclude []string) ([]entry, error) {
	root, err := filepath.EvalSymlinks(tree.Source) // WalkDir does not follow a root that is a link
	if err != nil {
		return nil, err
	}
	var all []entry
	err = filepath.WalkDir(root, func(source string, found fs.DirEntry, err error) error {
		if err != nil || source == root {
			return err
		}
		inside, err := filepath.Rel(root, source)
		if err != nil {
			return err
		}
		target := path.Join(tree.Target, filepath.ToSlash(inside))
		if excluded(target, exclude) {
			if found.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		e := entry{path: strings.TrimPrefix(target, "/"), source: source}
		switch {
		case found.IsDir():
			e = entry{path: e.path + "/", mode: 0o755}
		case found.Type()&fs.ModeSymlink != 0:
			if e.link, err = os.Readlink(source); err != nil {
				return err
			}
			if path.IsAbs(e.link) || !filepath.IsLocal(path.Join(path.Dir(filepath.ToSlash(inside)), e.link)) {
				return fmt.Errorf("%s is a link to %s, which is not in %s: the image would not have it", source, e.link, tree.Source)
			}
		}
		all = append(all, e)
		return nil
	})
	return all, err
}

func excluded(target string, patterns []string) bool {
	for _, pattern := range patterns {
		against := target
		if !strings.Contains(pattern, "/") {
			against = path.Base(target)
		}
		if matches, err := path.Match(pattern, against); err == nil && matches { // the patterns were checked before
			return true
		}
	}
	return false
}

// libraries returns the machine's libraries that an image's files need. Libraries that are in the image anyway are not
// added again.
func libraries(l *linker, all []entry) ([]string, error) {
	var sources []string
	own := map[string]bool{}
	for _, e := range all {
		if e.source != "" && e.link == "" {
			sources, own[e.source] = append(sources, e.source), true
			// These are found last, for files whose importers have loaded them before.
			l.own[path.Base(e.path)] = e.source
		}
	}
	needed, err := l.closure(sources)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, library := range needed {
		real, err := filepath.EvalSymlinks(library)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if !own[library] && !own[real] {
			out = append(out, library)
		}
	}
	return out, nil
}
