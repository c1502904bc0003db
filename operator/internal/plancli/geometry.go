package plancli

import (
	"fmt"
	"os"
	"strings"

	"tangram.dev/operator/pkg/geometry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Geometry of a config.json, or of a public model by its name.
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
	all, err := geometry.Public()
	if err != nil {
		return nil, err
	}
	var known []string
	for _, g := range all {
		if g.Model == of {
			return g, nil
		}
		known = append(known, g.Model)
	}
	f, err := os.Open(of)
	if err != nil {
		return nil, fmt.Errorf("geometry %q is neither a config.json (%w) nor one of: %s", of, err, strings.Join(known, ", "))
	}
	defer func() { _ = f.Close() }() // only read
	g, err := geometry.FromConfig(f, granuleRows)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", of, err)
	}
	return g, nil
}
