package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"

	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/pkg/geometry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

const block = 128 // of FP8: numbers that share a scale, in rows and in columns

// sectionsOf returns the sections of a granule (docs/architecture.md, section 8): gate, up and down, and for block FP8
// their scales, in F32.
func sectionsOf(g *tangramv1.Geometry) ([]*tangramv1.Section, error) {
	hidden, rows := uint64(g.Hidden), uint64(g.GranuleRows)
	section := func(lines, bytes uint64) *tangramv1.Section { return &tangramv1.Section{Lines: lines, Bytes: bytes} }
	switch g.Dtype {
	case tangramv1.DType_DTYPE_BF16:
		return []*tangramv1.Section{section(1, rows*hidden*2), section(1, rows*hidden*2), section(hidden, rows*2)}, nil
	case tangramv1.DType_DTYPE_FP8_E4M3_BLOCK128:
		across := (hidden + block - 1) / block
		scales := rows / block * 4
		return []*tangramv1.Section{section(1, rows*hidden), section(1, rows*hidden), section(hidden, rows),
			section(1, across*scales), section(1, across*scales), section(across, scales)}, nil
	}
	return nil, fmt.Errorf("%s: no sections of %v are known", g.Model, g.Dtype)
}

// rowMajorView is the same model in row-major slabs, with matrices stored as in the checkpoint.
func rowMajorView(v *geometry.View) (*geometry.View, error) {
	g := proto.CloneOf(v.Proto)
	sections, err := sectionsOf(g)
	if err != nil {
		return nil, err
	}
	g.SlabFormat, g.Sections = tangramv1.SlabFormat_SLAB_FORMAT_ROW_MAJOR, sections
	return geometry.New(g)
}

// sectors of one direction of a kernel; see kernels/sectors.h.
type sectors struct{ Requests, Bytes, Sectors, Full uint64 }

type traffic struct{ Loads, Stores sectors }

// moveTraffic is tangram-traffic's result for one move.
type moveTraffic struct {
	Ranges     uint64
	RangeBytes uint64 `json:"range_bytes"`
	Strips     traffic
	Alone      traffic
	Gather     traffic
	HashSums   traffic `json:"hash_sums"`
	HashChain  traffic `json:"hash_chain"`
}

func kernelsOf(m moveTraffic) map[string]traffic {
	return map[string]traffic{"copy_strips": m.Strips, "copy_strips_alone": m.Alone, "copy_strips_to_hash": m.Gather, "hash_sums": m.HashSums,
		"hash_chain": m.HashChain}
}

// countTraffic runs the tool for one move of each kind.
func countTraffic(tool string, v *geometry.View, kinds []moveKind) (map[moveKind]moveTraffic, error) {
	sections, err := sectionsOf(v.Proto)
	if err != nil {
		return nil, err
	}
	planes := make([][2]uint64, len(sections))
	for i, s := range sections {
		planes[i] = [2]uint64{s.Lines, s.Bytes}
	}
	asked, err := json.Marshal(map[string]any{"planes": planes, "moves": kinds,
		"interleaved": v.Proto.SlabFormat == tangramv1.SlabFormat_SLAB_FORMAT_ROW_MAJOR})
	if err != nil {
		return nil, err
	}
	var told bytes.Buffer
	command := exec.Command(tool)
	command.Stdin, command.Stderr = bytes.NewReader(asked), &told
	answer, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("%s (ninja -C build/cxx tangram-traffic): %w: %s", tool, err, told.String())
	}
	var found []moveTraffic
	if err := json.Unmarshal(answer, &found); err != nil {
		return nil, fmt.Errorf("%s: %w", tool, err)
	}
	if len(found) != len(kinds) {
		return nil, fmt.Errorf("%s: %d answers to %d moves", tool, len(found), len(kinds))
	}
	out := map[moveKind]moveTraffic{}
	for i, one := range found {
		out[kinds[i]] = one //nolint:gosec // there are as many
	}
	return out, nil
}

// kernelTotal adds up the traffic of one kernel over many moves.
type kernelTotal struct{ loads, stores sectors }

func (k *kernelTotal) add(t traffic, times uint64) {
	k.loads.add(t.Loads, times)
	k.stores.add(t.Stores, times)
}

func (s *sectors) add(o sectors, times uint64) {
	s.Requests += o.Requests * times
	s.Bytes += o.Bytes * times
	s.Sectors += o.Sectors * times
	s.Full += o.Full * times
}

func share(part, of uint64) float64 {
	if of == 0 {
		return 1
	}
	return float64(part) / float64(of)
}

// full is the share of full sectors in the worse direction.
func (k *kernelTotal) full() float64 {
	return min(share(k.loads.Full, k.loads.Sectors), share(k.stores.Full, k.stores.Sectors))
}

func (k *kernelTotal) line() map[string]any {
	return map[string]any{"bytes_read": k.loads.Bytes, "bytes_written": k.stores.Bytes, "sectors_per_load": share(k.loads.Sectors, k.loads.Requests),
		"sectors_per_store": share(k.stores.Sectors, k.stores.Requests), "full_sectors": k.full()}
}
