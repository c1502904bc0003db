package main

import (
	"fmt"
	"os"
	"path/filepath"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/kernels"
)

// pacedModel is the model whose measured kernels give the duration of paced steps.
const pacedModel = "Qwen3-30B-A3B"

// paceFile writes the table of `tangram pace-table` into the folder of logs, for worlds of up to this many ranks.
func paceFile(o options, engine, routing string, ranks int) (string, *kernels.Compiled, error) {
	table, err := kernels.Open(pacedModel)
	if err != nil {
		return "", nil, err
	}
	all, err := geometry.Public()
	if err != nil {
		return "", nil, err
	}
	for _, g := range all {
		if g.Model != pacedModel {
			continue
		}
		v, err := geometry.New(g)
		if err != nil {
			return "", nil, err
		}
		compiled, err := kernels.Compile(table, v, engine, routing, ranks)
		if err != nil {
			return "", nil, err
		}
		if err := os.MkdirAll(o.out, 0o750); err != nil {
			return "", nil, err
		}
		path := filepath.Join(o.out, "pace.json")
		file, err := os.Create(path)
		if err != nil {
			return "", nil, err
		}
		if err := compiled.WriteJSON(file); err != nil {
			_ = file.Close() // the first error is the one to report
			return "", nil, err
		}
		return path, compiled, file.Close()
	}
	return "", nil, fmt.Errorf("no geometry of %s", pacedModel)
}
