// Package image builds image archives from files of this machine, without a daemon.
package image

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// File maps a file or a folder (with its whole content) of the machine to a path in the image.
type File struct{ Source, Target string }

// ParseFile parses `FILE[:DEST]`; the default of DEST is /bin/<name of the file>.
func ParseFile(text string) (File, error) {
	source, target, _ := strings.Cut(text, ":")
	if source == "" {
		return File{}, fmt.Errorf("file %q: want FILE[:DEST]", text)
	}
	if target == "" {
		target = "/bin/" + filepath.Base(source)
	}
	if !path.IsAbs(target) || path.Clean(target) != target || target == "/" {
		return File{}, fmt.Errorf("file %q: destination %q is not a clean absolute path", text, target)
	}
	return File{Source: source, Target: target}, nil
}

// Spec describes an image.
type Spec struct {
	Name       string   // with a tag other than latest, which nodes would try to pull
	Files      []File   // at least one
	Entrypoint []string // empty: the first file
	User       string   // "65532"; empty: root
	Env        []string // NAME=VALUE, in addition to PATH
	Exclude    []string // from folders: paths of the image, or names, with wildcards
}

// Build builds the image and writes its archive atomically to the path.
func (s Spec) Build(ctx context.Context, out string) (err error) {
	tag, err := name.NewTag(s.Name, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("image %s: %w (want REGISTRY/NAME:TAG)", s.Name, err)
	}
	if tag.TagStr() == "latest" {
		return fmt.Errorf("image %s: give it a tag other than latest, which nodes always want to pull", s.Name)
	}
	built, err := s.image(ctx)
	if err != nil {
		return fmt.Errorf("image %s: %w", s.Name, err)
	}
	temporary, err := os.CreateTemp(filepath.Dir(out), ".image-*")
	if err != nil {
		return fmt.Errorf("image %s: %w", s.Name, err)
	}
	defer func() { _ = os.Remove(temporary.Name()) }() // already renamed after a success
	if err := errors.Join(tarball.Write(tag, built, temporary), temporary.Chmod(0o644), temporary.Close()); err != nil {
		return fmt.Errorf("image %s: %w", s.Name, err)
	}
	return os.Rename(temporary.Name(), out)
}

func (s Spec) image(ctx context.Context) (v1.Image, error) {
	if len(s.Files) == 0 {
		return nil, errors.New("no files")
	}
	files, err := expand(s.Files, s.Exclude)
	if err != nil {
		return nil, err
	}
	linker, err := newLinker(ctx)
	if err != nil {
		return nil, err
	}
	needed, err := libraries(linker, files)
	if err != nil {
		return nil, err
	}
	below := slices.Clone(baseTexts)
	for _, library := range needed {
		below = append(below, entry{path: strings.TrimPrefix(library, "/"), source: library})
	}
	base, err := layer(withFolders(below))
	if err != nil {
		return nil, fmt.Errorf("base layer: %w", err)
	}
	top, err := layer(withFolders(files))
	if err != nil {
		return nil, err
	}
	built, err := mutate.AppendLayers(empty.Image, base, top)
	if err != nil {
		return nil, err
	}
	config := v1.Config{User: s.User, WorkingDir: "/", Entrypoint: s.Entrypoint, Env: append([]string{"PATH=/bin:/usr/bin"}, s.Env...)}
	if len(config.Entrypoint) == 0 {
		config.Entrypoint = []string{s.Files[0].Target}
	}
	if dirs := unusual(needed); len(dirs) > 0 {
		config.Env = append(config.Env, "LD_LIBRARY_PATH="+strings.Join(dirs, ":"))
	}
	return mutate.ConfigFile(built, withPlatform(built, config))
}

// withPlatform completes the configuration of an image with layers.
func withPlatform(built v1.Image, config v1.Config) *v1.ConfigFile {
	file, err := built.ConfigFile()
	if err != nil { // of an in-memory image
		panic(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", runtime.GOARCH, config
	file.Created = v1.Time{Time: time.Unix(0, 0).UTC()}
	return file
}

// unusual returns the folders of libraries that the dynamic linker does not search by default: the image has no
// ld.so.cache.
func unusual(libraries []string) []string {
	var dirs []string
	for _, library := range libraries {
		dir := path.Dir(library)
		plain := strings.TrimPrefix(dir, "/usr")
		parent, last := path.Split(plain)
		usual := plain == "/lib" || plain == "/lib64" || parent == "/lib/" && strings.HasSuffix(last, "-linux-gnu")
		if !usual && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// entry is an entry of a layer: a folder (path ends in /), a text, a link, or a file of the machine.
type entry struct {
	path   string // without the leading /
	mode   int64
	text   string
	link   string
	source string
}

var baseTexts = []entry{
	{path: "tmp/", mode: 0o1777},
	{path: "etc/passwd", mode: 0o644, text: "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n"},
	{path: "etc/group", mode: 0o644, text: "root:x:0:\nnonroot:x:65532:\n"},
}

// withFolders adds the parent folders of the entries, and sorts by path.
func withFolders(all []entry) []entry {
	all = slices.Clone(all)
	known := map[string]bool{}
	for _, e := range all {
		known[e.path] = true
	}
	for _, e := range slices.Clone(all) {
		for dir := path.Dir(strings.TrimSuffix(e.path, "/")); dir != "."; dir = path.Dir(dir) {
			if !known[dir+"/"] {
				known[dir+"/"] = true
				all = append(all, entry{path: dir + "/", mode: 0o755})
			}
		}
	}
	slices.SortFunc(all, func(a, b entry) int { return strings.Compare(a.path, b.path) })
	return all
}

// layer generates its bytes at each read: first for the digest, then for the archive.
func layer(all []entry) (v1.Layer, error) {
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		reader, writer := io.Pipe()
		go func() { writer.CloseWithError(writeTar(writer, all)) }()
		return reader, nil
	}, tarball.WithCompressionLevel(gzip.BestSpeed))
}

func writeTar(to io.Writer, all []entry) error {
	writer := tar.NewWriter(to)
	for _, e := range all {
		if err := writeEntry(writer, e); err != nil {
			return err
		}
	}
	return writer.Close()
}

func writeEntry(writer *tar.Writer, e entry) (err error) {
	header := &tar.Header{Name: e.path, Mode: e.mode, Typeflag: tar.TypeReg, Size: int64(len(e.text)), ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
	var content io.Reader = strings.NewReader(e.text)
	switch {
	case strings.HasSuffix(e.path, "/"):
		header.Typeflag = tar.TypeDir
	case e.link != "":
		header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, e.link, 0o777
	case e.source != "":
		file, err := os.Open(e.source) // follows links of libraries
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		info, err := file.Stat()
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is not a regular file", e.source)
		}
		header.Size, content = info.Size(), file
		header.Mode = 0o644
		if info.Mode()&0o111 != 0 {
			header.Mode = 0o755 // readable for every user, whatever the umask
		}
	}
	if err := writer.WriteHeader(header); err != nil {
		return fmt.Errorf("%s: %w", e.path, err)
	}
	if _, err := io.Copy(writer, content); err != nil {
		return fmt.Errorf("%s: %w", e.path, err)
	}
	return nil
}
