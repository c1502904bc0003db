package geometry

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

func TestDefaultGranuleRows(t *testing.T) {
	text, err := os.ReadFile("../../../tests/golden/granule-rows.json")
	require.NoError(t, err)
	var golden [][3]any
	require.NoError(t, json.Unmarshal(text, &golden))
	types := map[string]tangramv1.DType{"MXFP4": tangramv1.DType_DTYPE_MXFP4}
	for dtype, name := range dtypes {
		types[name] = dtype
	}
	for _, c := range golden {
		require.EqualValues(t, c[2], DefaultGranuleRows(uint32(c[0].(float64)), BlockRows(types[c[1].(string)])), "%v", c)
	}
	require.Greater(t, len(golden), 10)
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
