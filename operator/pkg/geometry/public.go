package geometry

import (
	_ "embed"
	"encoding/csv"
	"fmt"
	"strconv"
	"strings"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Facts from the public config.json of each model; the last column but one names the
// source of each row.
//
//go:embed geometries.csv
var publicCSV string

// PublicPageBytes is the mapping granularity assumed for the public models (CUDA's 2 MiB).
const PublicPageBytes = 2 << 20

// Public returns the geometries of the public models in geometries.csv, in file order,
// in the dtype of their checkpoint. dense_bytes is left 0: the table counts routed
// experts only.
func Public() ([]*tangramv1.Geometry, error) {
	rows, err := csv.NewReader(strings.NewReader(publicCSV)).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("geometries.csv: %w", err)
	}
	column := map[string]int{}
	for i, name := range rows[0] {
		column[name] = i
	}
	var out []*tangramv1.Geometry
	for n, row := range rows[1:] {
		number := func(name string) uint32 {
			if row[column[name]] == "" {
				return 0 // not known
			}
			value, e := strconv.ParseUint(row[column[name]], 10, 32)
			if e != nil && err == nil {
				err = fmt.Errorf("geometries.csv row %d, column %s: %w", n+2, name, e)
			}
			return uint32(value)
		}
		g := &tangramv1.Geometry{
			Model: row[column["model"]], Layers: number("layers"), Hidden: number("hidden"),
			MoeInner: number("moe_inter"), Experts: number("routed_experts"), TopK: number("top_k"),
			QueryHeads: number("q_heads"), KvHeads: number("kv_heads"), HeadDim: number("head_dim"),
			SlabFormat: tangramv1.SlabFormat_SLAB_FORMAT_GRANULE_MAJOR, PageBytes: PublicPageBytes,
		}
		native, kv := uint64(number("bytes_native")), uint64(number("kv_bytes_per_token_per_layer_bf16"))
		moe := number("moe_layers")
		if err != nil {
			return nil, err
		}
		dtype := row[column["checkpoint_dtype"]]
		if strings.HasPrefix(row[column["attention"]], "MLA") {
			g.KvHeads = 1 // one latent per token
		}
		g.KvHeadTokenBytes = kv / uint64(g.KvHeads)
		g.GranuleRows = 32
		for _, rows := range []uint32{128, 64} {
			if g.MoeInner%rows == 0 {
				g.GranuleRows = rows
				break
			}
		}
		if strings.Contains(dtype, "bias") {
			g.ExpertTailBytes = 2 * uint64(g.Hidden) // bf16 bias of down: needed by every shard
		}
		granules := uint64(g.MoeInner / g.GranuleRows)
		g.GranuleBytes = (native - g.ExpertTailBytes) / granules
		if g.GranuleBytes*granules+g.ExpertTailBytes != native {
			return nil, fmt.Errorf("geometries.csv row %d (%s): %d bytes do not divide into %d granules", n+2,
				g.Model, native, granules)
		}
		g.Dtype = nativeType(dtype)
		// The last layers have the experts, as in the models that start with dense ones.
		stride := uint32(1)
		if moe*2 == g.Layers {
			stride = 2 // every other layer
		}
		for i := range moe {
			g.MoeLayers = append(g.MoeLayers, g.Layers-1-(moe-1-i)*stride)
		}
		out = append(out, g)
	}
	return out, nil
}

func nativeType(checkpoint string) tangramv1.DType {
	switch {
	case strings.HasPrefix(checkpoint, "FP8"):
		return tangramv1.DType_DTYPE_FP8_E4M3_BLOCK128
	case strings.HasPrefix(checkpoint, "MXFP4"), strings.HasPrefix(checkpoint, "experts FP4"):
		return tangramv1.DType_DTYPE_MXFP4
	}
	return tangramv1.DType_DTYPE_BF16
}
