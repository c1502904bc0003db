package geometry

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

func TestDefaultGranuleRows(t *testing.T) {
	for _, c := range []struct{ inner, block, rows uint32 }{
		{768, 1, 96}, {1024, 1, 128}, {1408, 1, 128}, {1536, 1, 128}, {2048, 1, 128}, {2880, 1, 96}, {14336, 1, 128}, {512, 1, 64}, {160, 1, 16}, {48, 1, 4},
		{768, 128, 128}, {2048, 128, 128}, {2880, 32, 96}, {7, 1, 7}, {13, 1, 1}, {100, 128, 1},
	} {
		if rows := DefaultGranuleRows(c.inner, c.block); rows != c.rows {
			t.Errorf("%d rows in blocks of %d: granules of %d; want %d", c.inner, c.block, rows, c.rows)
		}
	}
}

func TestRecut(t *testing.T) {
	all, err := Public()
	require.NoError(t, err)
	for _, public := range all {
		was, err := New(public)
		require.NoError(t, err)
		for _, rows := range []uint32{0, 128, 64, 100} {
			g := proto.CloneOf(public)
			if err := Recut(g, rows); err != nil {
				require.NotZero(t, rows, g.Model)
				require.ErrorContains(t, err, "does not divide")
				continue
			}
			v, err := New(g)
			require.NoError(t, err)
			require.Equal(t, was.ExpertBytes, v.ExpertBytes, "%s in granules of %d rows", g.Model, rows)
			require.Zero(t, g.GranuleRows%BlockRows(g.Dtype))
		}
	}
	require.EqualError(t, Recut(&tangramv1.Geometry{Model: "m", MoeInner: 768, GranuleRows: 128, Dtype: tangramv1.DType_DTYPE_FP8_E4M3_BLOCK128}, 96),
		"granule_rows = 96 does not divide the 768 rows of an expert of m into blocks of 128; 128 does")
}
