package geometry

import (
	"fmt"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// DefaultGranuleRows returns the rows of a granule if none are given: the largest number up to 128 that gives an expert
// at least 8 granules, so that 8 ranks can share it. Otherwise it is the largest number that divides the rows.
func DefaultGranuleRows(inner, block uint32) uint32 {
	if rows := RowsFor(inner, block, 8, 128); rows > 0 {
		return rows
	}
	return max(RowsFor(inner, block, 1, 128), 1)
}

// RowsFor returns the largest number of rows of a granule, up to `most`, that cuts `inner` rows into at least
// `granules` granules. It is a multiple of `block` and, if possible, of 16; 0: no number fits.
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

// BlockRows returns the rows of a scale block of the type, which no granule may cut; 1: the type has no blocks.
func BlockRows(dtype tangramv1.DType) uint32 {
	switch dtype {
	case tangramv1.DType_DTYPE_FP8_E4M3_BLOCK128:
		return 128
	case tangramv1.DType_DTYPE_MXFP4:
		return 32
	}
	return 1
}

// Recut gives a geometry granules of `rows` rows; 0: DefaultGranuleRows.
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
