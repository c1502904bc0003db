package geometry

import (
	"fmt"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// DefaultGranuleRows are the rows of a granule where nobody says them: the most of at most 128 that give an expert 8 granules or more, so
// that 8 ranks can share it; else the most that divide it.
func DefaultGranuleRows(inner, block uint32) uint32 {
	if rows := RowsFor(inner, block, 8, 128); rows > 0 {
		return rows
	}
	return max(RowsFor(inner, block, 1, 128), 1)
}

// RowsFor are the most rows of a granule, up to `most`, that divide an expert of `inner` rows into at least so many granules, as
// multiples of `block` and, if that can be, of 16; 0: there are none.
func RowsFor(inner, block, granules, most uint32) uint32 {
	for _, unit := range []uint32{16, 8, 4, 2, 1} {
		for rows := min(most, inner); rows > 0; rows-- {
			if inner%rows == 0 && rows%block == 0 && rows%unit == 0 && inner/rows >= granules {
				return rows
			}
		}
	}
	return 0
}

// BlockRows are the rows of a block of the type's scales, which no granule may cut; 1: it has none.
func BlockRows(dtype tangramv1.DType) uint32 {
	switch dtype {
	case tangramv1.DType_DTYPE_FP8_E4M3_BLOCK128:
		return 128
	case tangramv1.DType_DTYPE_MXFP4:
		return 32
	}
	return 1
}

// Recut gives a geometry granules of so many rows; 0: DefaultGranuleRows.
func Recut(g *tangramv1.Geometry, rows uint32) error {
	block := BlockRows(g.Dtype)
	if rows == 0 {
		rows = DefaultGranuleRows(g.MoeInner, block)
	}
	if g.MoeInner%rows != 0 || rows%block != 0 {
		return fmt.Errorf("granule_rows = %d does not divide the %d rows of an expert of %s into blocks of %d; %d does", rows, g.MoeInner, g.Model, block,
			DefaultGranuleRows(g.MoeInner, block))
	}
	bytes := g.GranuleBytes * uint64(g.MoeInner/g.GranuleRows)
	g.GranuleRows = rows
	g.GranuleBytes = bytes / uint64(g.MoeInner/rows)
	return nil
}
