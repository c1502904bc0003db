package geometry

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

func TestShardsCoverEachExpertEvenly(t *testing.T) {
	for granules := uint32(1); granules <= 20; granules++ {
		for g := uint32(1); g <= granules; g++ {
			held := make([]uint32, g)
			for e := range g {
				next := uint32(0)
				for p := range g {
					run := ShardOf(granules, g, e, p)
					require.Equal(t, next, run.Start)
					require.GreaterOrEqual(t, run.Count, granules/g)
					require.LessOrEqual(t, run.Count, (granules+g-1)/g)
					next = run.End()
					held[p] += run.Count
				}
				require.Equal(t, granules, next)
			}
			for _, sum := range held {
				require.Equal(t, granules, sum, "over g experts the longer runs go round")
			}
		}
	}
}

func TestPublicGeometriesAreValid(t *testing.T) {
	all, err := Public()
	require.NoError(t, err)
	require.Len(t, all, 18)
	for _, g := range all {
		v, err := New(g)
		require.NoError(t, err, g.Model)
		if g.Model == "Qwen3-30B-A3B" {
			require.EqualValues(t, 6, v.Granules)
			require.EqualValues(t, 9437184, v.ExpertBytes)
		}
	}
}

func TestNewErrorsNameField(t *testing.T) {
	all, err := Public()
	require.NoError(t, err)
	for want, spoil := range map[string]func(*View){
		"granule_rows = 100 does not divide":      func(v *View) { v.Proto.GranuleRows = 100 },
		"32 query heads are not a multiple of 5":  func(v *View) { v.Proto.KvHeads = 5 },
		"page_bytes = 3000 is no power of two":    func(v *View) { v.Proto.PageBytes = 3000 },
		"moe_layers must ascend below layers = 3": func(v *View) { v.Proto.Layers = 3 },
		"experts = 0": func(v *View) { v.Proto.Experts = 0 },
	} {
		v, err := New(proto.CloneOf(all[0]))
		require.NoError(t, err)
		spoil(v)
		_, err = New(v.Proto)
		require.ErrorContains(t, err, want)
	}
}

func TestSectionsAddUpToGranule(t *testing.T) {
	all, err := Public()
	require.NoError(t, err)
	const much = uint64(1) << 63
	try := func(format tangramv1.SlabFormat, sections ...*tangramv1.Section) error {
		g := proto.CloneOf(all[0])
		g.GranuleBytes, g.SlabFormat, g.Sections = 1000, format, sections
		_, err := New(g)
		return err
	}
	section := func(lines, bytes uint64) *tangramv1.Section { return &tangramv1.Section{Lines: lines, Bytes: bytes} }
	const rows = tangramv1.SlabFormat_SLAB_FORMAT_ROW_MAJOR
	require.NoError(t, try(rows, section(1, 400), section(1, 400), section(50, 4)))
	require.NoError(t, try(tangramv1.SlabFormat_SLAB_FORMAT_GRANULE_MAJOR))
	require.ErrorContains(t, try(tangramv1.SlabFormat_SLAB_FORMAT_GRANULE_MAJOR, section(1, 1000)), "1 sections, and slab_format is not")
	require.ErrorContains(t, try(rows), "leave 1000 bytes")
	require.ErrorContains(t, try(rows, section(1, 400), section(50, 3)), "leave 450 bytes")
	require.ErrorContains(t, try(rows, section(1, 900), section(50, 3)), "section 1 of 50 lines of 3 bytes, 100 of")
	require.ErrorContains(t, try(rows, section(0, 7), section(1, 1000)), "section 0 of 0 lines")
	require.ErrorContains(t, try(rows, section(7, 0), section(1, 1000)), "section 0 of 7 lines of 0 bytes")
	require.ErrorContains(t, try(rows, section(much, 2), section(1, 1000)), "section 0 of 9223372036854775808 lines")
	require.ErrorContains(t, try(rows, section(2, much), section(1, 1000)), "section 0 of 2 lines of 9223372036854775808")
}
