package checker_test

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/pkg/checker"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// fetching is the first part of a walk that fetches experts from other ranks.
func fetching(c *checker.Case) *tangramv1.RankPart {
	for _, f := range c.Plan.Flips {
		for _, part := range f.Parts {
			if f.Kind == walk && len(part.GetFetches().GetLayer()) > 0 {
				return part
			}
		}
	}
	return nil
}

func copying(c *checker.Case) *tangramv1.RankPart {
	for _, f := range c.Plan.Flips {
		for _, part := range f.Parts {
			if len(part.GetCopies().GetLayer()) > 0 {
				return part
			}
		}
	}
	return nil
}

// again adds a run of granules of the expert of the i-th fetch.
func again(f *tangramv1.Fetches, i int, start, count, source uint32) {
	f.Layer, f.Expert, f.Source = append(f.Layer, f.Layer[i]), append(f.Expert, f.Expert[i]), append(f.Source, source)
	f.GranuleStart, f.GranuleCount = append(f.GranuleStart, start), append(f.GranuleCount, count)
}

func TestCheckRejectsWrongFetchesAndCopies(t *testing.T) {
	_, sound := grown(t, 0)
	f := func(c *checker.Case) *tangramv1.Fetches { return fetching(c).Fetches }
	cp := func(c *checker.Case) *tangramv1.LocalCopies { return copying(c).Copies }
	object(t, sound, []spoilt{
		{"a fetch's layer missing", func(c *checker.Case) { f(c).Layer = f(c).Layer[1:] }, "columns of fetches", false},
		{"a fetch's expert missing", func(c *checker.Case) { f(c).Expert = f(c).Expert[1:] }, "columns of fetches", false},
		{"a fetch's start missing", func(c *checker.Case) { f(c).GranuleStart = f(c).GranuleStart[1:] }, "columns of fetches", false},
		{"a fetch's count missing", func(c *checker.Case) { f(c).GranuleCount = f(c).GranuleCount[1:] }, "columns of fetches", false},
		{"a fetch's source missing", func(c *checker.Case) { f(c).Source = f(c).Source[1:] }, "columns of fetches", false},
		{"a copy's layer missing", func(c *checker.Case) { cp(c).Layer = cp(c).Layer[1:] }, "columns of copies", false},
		{"a copy's expert missing", func(c *checker.Case) { cp(c).Expert = cp(c).Expert[1:] }, "columns of copies", false},
		{"a copy's start missing", func(c *checker.Case) { cp(c).GranuleStart = cp(c).GranuleStart[1:] }, "columns of copies", false},
		{"a copy's count missing", func(c *checker.Case) { cp(c).GranuleCount = cp(c).GranuleCount[1:] }, "columns of copies", false},
		{"brought twice", func(c *checker.Case) { again(f(c), 0, f(c).GranuleStart[0], 1, f(c).Source[0]) }, "comes twice", false},
		{"a granule too few", func(c *checker.Case) { f(c).GranuleCount[0]-- }, "has no source", false},
		{"a granule that nobody wants", func(c *checker.Case) {
			start := uint32(0)
			if f(c).GranuleStart[0] == 0 {
				start = 5
			}
			again(f(c), 0, start, 1, 0)
		}, "are needed", false},
		{"from itself", func(c *checker.Case) { f(c).Source[0] = fetching(c).Rank + 1 }, "from source", false},
		{"from the one after the last", func(c *checker.Case) { f(c).Source[0] = 5 }, "from source 5 of 4 ranks", false},
		{"from who lacks it", func(c *checker.Case) {
			if f(c).Source[0] = f(c).Source[0]%3 + 1; f(c).Source[0] == fetching(c).Rank+1 {
				f(c).Source[0] = f(c).Source[0]%3 + 1
			}
		}, "which does not hold it", false},
		{"a copy of what it lacks", func(c *checker.Case) { cp(c).Expert[0] = f(c).Expert[0] }, "lie in no one place", false},
		{"a copy and a fetch", func(c *checker.Case) {
			one, part := cp(c), copying(c)
			if part.Fetches == nil {
				part.Fetches = &tangramv1.Fetches{}
			}
			to := part.Fetches
			to.Layer, to.Expert, to.Source = append(to.Layer, one.Layer[0]), append(to.Expert, one.Expert[0]), append(to.Source, 0)
			to.GranuleStart, to.GranuleCount = append(to.GranuleStart, one.GranuleStart[0]), append(to.GranuleCount, 1)
		}, "comes twice", false},
	})
	object(t, shrunk(t), []spoilt{{"what lies in place", func(c *checker.Case) {
		part := fetching(c)
		for _, g := range c.Before.Layers[1].Experts {
			if f := part.Fetches; g.Ranks[0] == part.Rank {
				f.Layer, f.Expert, f.Source = append(f.Layer, 1), append(f.Expert, g.Slots[0]-1), append(f.Source, 0)
				f.GranuleStart, f.GranuleCount = append(f.GranuleStart, 2), append(f.GranuleCount, 1)
			}
		}
	}, "lies in place", false}})
}

func TestCheckRejectsWrongDeclaredBytes(t *testing.T) {
	for _, tail := range []uint64{0, 40} {
		_, sound := grown(t, tail)
		page := sound.Geometry.Proto.PageBytes
		object(t, sound, []spoilt{
			{"a peak too low", func(c *checker.Case) { fetching(c).PeakBytes-- }, "declares peak", false},
			{"a steady too low", func(c *checker.Case) { fetching(c).SteadyBytes -= page }, "declares peak", false},
			{"a steady too high", func(c *checker.Case) { fetching(c).SteadyBytes += page }, "declares peak", false},
			{"a pool too small", func(c *checker.Case) {
				part := fetching(c)
				c.Limits = map[string]uint64{part.Member: part.PeakBytes - 1}
			}, "bytes in a pool of", false},
			{"expert bytes of a flip", func(c *checker.Case) { flip(c, walk).Cost.ExpertBytes++ }, "its parts move", false},
			{"dense bytes of a flip", func(c *checker.Case) { flip(c, join).Cost.DenseBytes-- }, "its parts move", false},
			{"local bytes of a flip", func(c *checker.Case) { flip(c, walk).Cost.LocalBytes-- }, "its parts move", false},
			{"checkpoint bytes of a flip", func(c *checker.Case) { flip(c, walk).Cost.CheckpointBytes++ }, "its parts move", false},
			{"expert bytes", func(c *checker.Case) { c.Plan.Cost.ExpertBytes++ }, "the plan declares", false},
			{"dense bytes", func(c *checker.Case) { c.Plan.Cost.DenseBytes++ }, "the plan declares", false},
			{"local bytes", func(c *checker.Case) { c.Plan.Cost.LocalBytes++ }, "the plan declares", false},
			{"checkpoint bytes", func(c *checker.Case) { c.Plan.Cost.CheckpointBytes++ }, "the plan declares", false},
		})
		// A pool of exactly the peak is accepted.
		exact := sound
		exact.Limits = map[string]uint64{}
		for _, f := range sound.Plan.Flips {
			for _, part := range f.Parts {
				exact.Limits[part.Member] = max(exact.Limits[part.Member], part.PeakBytes)
			}
		}
		object(t, exact, []spoilt{{"an epoch too many", func(c *checker.Case) { c.Plan.Flips[0].Epoch++ }, "expected", false}})
		if err := checker.Check(exact); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCheckRejectsWrongDenseSources(t *testing.T) {
	_, sound := grown(t, 0)
	d := func(c *checker.Case) *tangramv1.DenseFetch { return flip(c, join).Parts[3].Dense }
	object(t, sound, []spoilt{
		{"none", func(c *checker.Case) { flip(c, join).Parts[3].Dense = nil }, "dense weights in 0 parts", false},
		{"a part too few", func(c *checker.Case) { d(c).SourceByPart = d(c).SourceByPart[1:] }, "dense weights in 15 parts", false},
		{"from itself", func(c *checker.Case) { d(c).SourceByPart[3] = 4 }, "dense weights from source 4", false},
		{"from the one after the last", func(c *checker.Case) { d(c).SourceByPart[15] = 5 }, "dense weights from source 5", false},
		{"again", func(c *checker.Case) { flip(c, join).Parts[0].Dense = d(c) }, "holds or does not need", false},
		{"from who lacks them", func(c *checker.Case) {
			inv, m := map[string]*tangramv1.Inventory{}, c.Before.Members[1].Id
			for id, i := range c.Inventories {
				if id != m {
					inv[id] = proto.CloneOf(i)
				}
			}
			c.Inventories, c.Lost = inv, map[string]bool{m: true}
			flip(c, join).Parts = slices.Delete(flip(c, join).Parts, 1, 2)
			flip(c, join).Parts[2].Dense.SourceByPart[0] = 2
		}, "which lacks them", false},
		{"from the checkpoint", func(c *checker.Case) { d(c).SourceByPart[7] = 0 }, "which others hold", false},
	})
}

// On a first start each byte is read once, and every chain of fetches starts at the rank that reads it.
func TestCheckRejectsDuplicateReadsAtFirstStart(t *testing.T) {
	for _, tail := range []uint64{0, 40} {
		w := &world{v: view(t, tail)}
		sound := w.to(t, 3, tensorShape)
		part := func(c *checker.Case, rank int) *tangramv1.RankPart { return c.Plan.Flips[0].Parts[rank] }
		object(t, sound, []spoilt{
			{"dense read twice", func(c *checker.Case) {
				for rank := range 3 {
					part(c, rank).Dense.SourceByPart[7] = 0
				}
			}, "both read", false},
			{"in a circle", func(c *checker.Case) {
				for rank := range 3 {
					part(c, rank).Dense.SourceByPart[7] = uint32((rank+1)%3) + 1
				}
			}, "ends nowhere", false},
			{"experts from who has no part of them", func(c *checker.Case) {
				f := part(c, 0).Fetches
				f.Source[0] = 2
			}, "ends nowhere", false},
		})
	}
}
