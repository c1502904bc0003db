package plancli

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
)

// CheckpointSize is the memory that a rank needs for a checkpoint, with properties of the checkpoint.
type CheckpointSize struct {
	SizeReport
	Model       string `json:"model"`
	GranuleRows uint32 `json:"granuleRows"`
	ExpertBytes uint64 `json:"expertBytes"`
}

// SizeCheckpoint computes the memory of a rank for a checkpoint's folder, a config.json, or a public model by name. If
// denseBytes is 0, it reads them from the folder's safetensors. If granuleRows is 0, it chooses them so that the widest
// world can share an expert. It sets in.Geometry.
func SizeCheckpoint(model string, granuleRows uint32, pageBytes, denseBytes uint64, in SizeInput) (*CheckpointSize, error) {
	v, err := Geometry(model, granuleRows, pageBytes, denseBytes)
	if err != nil {
		return nil, fmt.Errorf("--model: %w", err)
	}
	g, widest := v.Proto, slices.Max(in.Widths)
	rows := g.GranuleRows
	if granuleRows == 0 && slices.Contains(in.Modes, layout.Tensor) && int(g.MoeInner/rows) < widest {
		if rows = geometry.RowsFor(g.MoeInner, geometry.BlockRows(g.Dtype), uint32(widest), 128); rows == 0 && !in.Lenient {
			return nil, fmt.Errorf("%d ranks cannot share an expert of %s, which has %d rows in blocks of %d; use fewer ranks or only ExpertParallel mode", widest, g.Model,
				g.MoeInner, geometry.BlockRows(g.Dtype))
		}
	}
	if denseBytes == 0 {
		if denseBytes, err = denseOf(model); err != nil {
			return nil, err
		}
	}
	if in.Geometry, err = Geometry(model, rows, pageBytes, denseBytes); err != nil {
		return nil, err
	}
	r, err := SizeRank(in)
	if err != nil {
		return nil, err
	}
	return &CheckpointSize{SizeReport: *r, Model: g.Model, GranuleRows: in.Geometry.Proto.GranuleRows, ExpertBytes: in.Geometry.ExpertBytes}, nil
}

// denseOf returns the dense bytes of a checkpoint's folder.
func denseOf(model string) (uint64, error) {
	folder := model
	if strings.HasSuffix(folder, ".json") {
		folder = filepath.Dir(folder)
	}
	if info, err := os.Stat(folder); err != nil || !info.IsDir() {
		return 0, fmt.Errorf("the size of the weights outside experts of the public model %s is unknown: set --dense-bytes, or set --model to the folder of the checkpoint", model)
	}
	dense, err := geometry.DenseBytes(folder)
	if err != nil {
		return 0, fmt.Errorf("%w; set --dense-bytes if the weights are in another folder", err)
	}
	return dense, nil
}
