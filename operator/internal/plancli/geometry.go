package plancli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"tangram.dev/operator/pkg/geometry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// configBytes is the maximum size of a config.json, as in the agent.
const configBytes = 64 << 20

// Geometry reads a config.json, alone or in a checkpoint's folder, or finds a public model by name. granuleRows 0:
// geometry.DefaultGranuleRows.
func Geometry(of string, granuleRows uint32, pageBytes, denseBytes uint64) (*geometry.View, error) {
	g, err := find(of, granuleRows)
	if err != nil {
		return nil, err
	}
	g.DenseBytes = denseBytes
	if pageBytes != 0 {
		g.PageBytes = pageBytes
	}
	return geometry.New(g)
}

func find(of string, granuleRows uint32) (*tangramv1.Geometry, error) {
	info, err := os.Stat(of)
	if errors.Is(err, fs.ErrNotExist) || of == "" {
		g, err := geometry.PublicNamed(of)
		if err != nil {
			return nil, fmt.Errorf("no config.json at that path, and %w", err)
		}
		return g, geometry.Recut(g, granuleRows)
	}
	if err == nil && info.IsDir() {
		of = filepath.Join(of, "config.json")
	}
	text, err := read(of)
	if err != nil {
		return nil, err
	}
	return geometry.FromConfig(text, of, granuleRows)
}

func read(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	text, err := io.ReadAll(io.LimitReader(f, configBytes+1))
	if err == nil && len(text) > configBytes {
		err = fmt.Errorf("%s is larger than %d bytes, the maximum for a config.json", file, configBytes)
	}
	return text, err
}
