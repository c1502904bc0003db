package geometry

import (
	"fmt"
	"strings"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// PublicNamed returns the geometry of a public model (Public) by an approximate name. Case does not matter, and an
// organization may precede it ("Qwen/Qwen3-30B-A3B"). One of several versions ("DeepSeek-V3" of "DeepSeek-V3/R1/V3.1")
// or a unique prefix is enough. The error lists the names.
func PublicNamed(name string) (*tangramv1.Geometry, error) {
	all, err := Public()
	if err != nil {
		return nil, err
	}
	wanted := strings.ToLower(name)
	names := []string{wanted}
	if _, after, found := strings.Cut(wanted, "/"); found {
		names = append(names, after)
	}
	var listed, begin []string
	var found *tangramv1.Geometry
	for _, g := range all {
		listed = append(listed, g.Model)
		for _, version := range versions(strings.ToLower(g.Model)) {
			for _, wanted := range names {
				if version == wanted {
					return g, nil
				}
			}
		}
	}
	for _, g := range all {
		for _, wanted := range names {
			if wanted != "" && strings.HasPrefix(strings.ToLower(g.Model), wanted) {
				begin, found = append(begin, g.Model), g
				break
			}
		}
	}
	switch len(begin) {
	case 0:
		return nil, fmt.Errorf("%q is no public model: %s", name, strings.Join(listed, ", "))
	case 1:
		return found, nil
	}
	return nil, fmt.Errorf("%q may be %s", name, strings.Join(begin, " or "))
}

// versions returns a name of the table and the versions that it stands for: for "GLM-4.5/4.6" "GLM-4.5" and "GLM-4.6",
// for "DeepSeek-V3/R1" "DeepSeek-V3" and "DeepSeek-R1".
func versions(model string) []string {
	parts := strings.Split(model, "/")
	out := []string{model, parts[0]}
	if cut := strings.LastIndex(parts[0], "-"); cut >= 0 {
		for _, part := range parts[1:] {
			out = append(out, parts[0][:cut+1]+part)
		}
	}
	return out
}
