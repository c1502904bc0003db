package checker_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/pkg/checker"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

const (
	first  = tangramv1.FlipKind_FLIP_KIND_FIRST
	join   = tangramv1.FlipKind_FLIP_KIND_JOIN
	walk   = tangramv1.FlipKind_FLIP_KIND_LAYOUT
	leave  = tangramv1.FlipKind_FLIP_KIND_LEAVE
	mended = tangramv1.FlipKind_FLIP_KIND_REPAIR
)

// grown: 3 ranks of whole experts become 4 that share each; shrunk: 4 become 2.
func grown(t *testing.T, tail uint64) (*world, checker.Case) {
	t.Helper()
	w := &world{v: view(t, tail)}
	w.to(t, 3, expertShape)
	return w, w.to(t, 4, tensorShape)
}

func shrunk(t *testing.T) checker.Case {
	t.Helper()
	w := &world{v: view(t, 0)}
	w.to(t, 4, expertShape)
	return w.to(t, 2, expertShape)
}

func TestCheckRejectsWrongEpochsAndHashes(t *testing.T) {
	_, sound := grown(t, 0)
	object(t, sound, []spoilt{
		{"from another hash", func(c *checker.Case) { c.Plan.FromHash[0] ^= 1 }, "another layout", false},
		{"from another epoch", func(c *checker.Case) { c.Plan.FromEpoch++ }, "another layout", false},
		{"another final hash", func(c *checker.Case) { c.Plan.FinalHash[0] ^= 1 }, "final hash", false},
		{"an epoch too many", func(c *checker.Case) { c.Plan.Flips[1].Epoch++ }, "expected", false},
		{"an epoch too few", func(c *checker.Case) { c.Plan.Flips[1].Epoch-- }, "expected", false},
		{"another hash", func(c *checker.Case) { c.Plan.Flips[1].TargetHash[0] ^= 1 }, "target hash", false},
		{"an unknown layer", func(c *checker.Case) { flip(c, walk).Delta.Layers[0].Layer = 9 }, "layer 9", false},
		{"an expert without owner", func(c *checker.Case) { l := flip(c, walk).Delta.Layers; l[len(l)-1].Experts[0].Slots[0] = 0 }, "has no owner", true},
		{"an unknown kind", func(c *checker.Case) { c.Plan.Flips[1].Kind = 99 }, "unknown kind", false},
		{"a second first start", func(c *checker.Case) { c.Plan.Flips[1].Kind = first }, "serves already", false},
	})
	w := &world{v: view(t, 0)}
	start := w.to(t, 3, expertShape)
	object(t, start, []spoilt{
		{"no flip", func(c *checker.Case) { c.Plan.Flips = nil }, "without a flip", false},
		{"from a hash of nothing", func(c *checker.Case) { c.Plan.FromHash = []byte{1} }, "nothing serves yet", false},
		{"from an epoch of nothing", func(c *checker.Case) { c.Plan.FromEpoch = 1 }, "nothing serves yet", false},
		{"a join to nothing", func(c *checker.Case) { c.Plan.Flips[0].Kind = join }, "nothing serves yet", false},
	})
}

func TestCheckRejectsWrongMemberChanges(t *testing.T) {
	_, sound := grown(t, 0)
	object(t, sound, []spoilt{
		{"members in another order", func(c *checker.Case) {
			m := flip(c, join).Delta.Members
			m[0], m[1] = m[1], m[0]
		}, "rank 0 changes", true},
		{"the last member in another place", func(c *checker.Case) {
			m := flip(c, join).Delta.Members
			m[2], m[3] = m[3], m[2]
		}, "rank 2 changes", true},
		{"a joiner with heads", func(c *checker.Case) {
			d := flip(c, join).Delta
			l := proto.CloneOf(c.Before.Layers[0])
			l.Attention = append(l.Attention, &tangramv1.AttentionGroup{Ranks: []uint32{3}, QueryHeadBounds: []uint32{0, 12}})
			d.Layers = append(d.Layers, l)
		}, "is in a group", true},
		{"a joiner with experts", func(c *checker.Case) {
			d := flip(c, join).Delta
			l := proto.CloneOf(c.Before.Layers[1])
			l.Experts = append(l.Experts, &tangramv1.ExpertGroup{Ranks: []uint32{3}, Slots: []uint32{1}})
			d.Layers = append(d.Layers, l)
		}, "is in a group", true},
		{"a joiner without dense", func(c *checker.Case) {
			flip(c, join).Delta.Dense.Ranks = []uint32{0, 1, 2}
		}, "without the dense", true},
		{"no member joins", func(c *checker.Case) {
			d := flip(c, join).Delta
			d.Members, d.Dense.Ranks = d.Members[:3], []uint32{0, 1, 2}
		}, "no member joins", true},
		{"members in a walk", func(c *checker.Case) {
			f := flip(c, walk)
			f.Delta.MembersChanged, f.Delta.Members = true, flip(c, join).Delta.Members
		}, "members change", true},
		{"new ranks in a walk", func(c *checker.Case) { flip(c, walk).Delta.Renumber = []uint32{1, 2, 3, 4} }, "members change", true},
		{"a part too few", func(c *checker.Case) { f := flip(c, walk); f.Parts = f.Parts[1:] }, "has no part", false},
		{"a part twice", func(c *checker.Case) { f := flip(c, walk); f.Parts = append(f.Parts, f.Parts[0]) }, "or twice", false},
		{"a part of nobody", func(c *checker.Case) { flip(c, walk).Parts[0].Rank = 4 }, "no such member", false},
		{"a part of another", func(c *checker.Case) { flip(c, walk).Parts[0].Member = "pod-2/0/1" }, "no such member", false},
		{"a part of a lost one", func(c *checker.Case) { c.Lost = map[string]bool{"pod-4/0/1": true} }, "which is lost", false},
	})
	object(t, shrunk(t), []spoilt{
		{"new ranks for too few", func(c *checker.Case) { flip(c, leave).Delta.Renumber = nil }, "new ranks of 0 members", true},
		{"a leaver that owns", func(c *checker.Case) {
			f := flip(c, leave)
			c.Plan.Flips = []*tangramv1.Flip{f}
			for _, l := range c.Before.Layers { // the same flip gives the layers to others
				l = proto.CloneOf(l)
				for i := len(l.Experts) - 1; i >= 2; i-- {
					l.Experts[0].Slots = append(l.Experts[0].Slots, l.Experts[i].Slots...)
					l.Experts = l.Experts[:i]
				}
				l.Attention = l.Attention[:2]
				f.Delta.Layers = append(f.Delta.Layers, l)
			}
		}, "is not empty", true},
		{"who stays changes places", func(c *checker.Case) {
			d := flip(c, leave).Delta
			d.Members[0], d.Members[1] = d.Members[1], d.Members[0]
		}, "change their order", true},
	})
}

// One flip rewrites more layers than there are spare banks.
func TestCheckRejectsRewritesBeyondSpareBanks(t *testing.T) {
	_, sound := grown(t, 0)
	object(t, sound, []spoilt{{"two at once", func(c *checker.Case) {
		var walks []*tangramv1.Flip
		for _, f := range c.Plan.Flips {
			if f.Kind == walk {
				walks = append(walks, f)
			}
		}
		walks[0].Delta.Layers = append(walks[0].Delta.Layers, walks[1].Delta.Layers...)
	}, "layers are rewritten with 1 spare banks", true}})
}

func TestCheckRejectsOtherFinalLayout(t *testing.T) {
	w, sound := grown(t, 0)
	object(t, sound, []spoilt{
		{"another member wanted", func(c *checker.Case) { c.Target = []string{"pod-1/0/1", "pod-2/0/1", "pod-3/0/1", "pod-9/0/1"} }, "wanted [", false},
		{"fewer wanted", func(c *checker.Case) { c.Target = c.Target[:3] }, "wanted [", false},
		{"another mode wanted", func(c *checker.Case) { c.Shape = expertShape }, "attention groups, wanted 4", false},
		{"other experts wanted", func(c *checker.Case) {
			c.Shape = layout.Shape{Mode: layout.Tensor, Layers: map[uint32]layout.LayerShape{1: {ExpertGroup: 2, AttentionGroup: 4}}}
		}, "layer 1: 1 expert groups, wanted 2", false},
		{"no such shape", func(c *checker.Case) { c.Shape = layout.Shape{} }, "neither ExpertParallel nor TensorParallel", false},
		{"heads in another order", func(c *checker.Case) {
			f := c.Plan.Flips[len(c.Plan.Flips)-1]
			for _, l := range f.Delta.Layers {
				r := l.Attention[0].Ranks
				r[2], r[3] = r[3], r[2]
			}
		}, "attention group 0 is [0 1 3 2]", true},
	})
	stay := w.to(t, 4, expertShape)
	halves := layout.Shape{Mode: layout.Expert, Layers: map[uint32]layout.LayerShape{}}
	for l := range w.v.Proto.Layers {
		halves.Layers[l] = layout.LayerShape{AttentionGroup: 2}
	}
	last := func(c *checker.Case) *tangramv1.LayerLayout {
		d := c.Plan.Flips[len(c.Plan.Flips)-1].Delta.Layers
		return d[len(d)-1]
	}
	object(t, stay, []spoilt{
		{"a rank without heads", func(c *checker.Case) { l := last(c); l.Attention = l.Attention[:3] }, "3 attention groups, wanted 4", true},
		{"a rank without dense", func(c *checker.Case) {
			c.Plan.Flips[len(c.Plan.Flips)-1].Delta.Dense = &tangramv1.DenseLayout{Ranks: []uint32{0, 1, 2}}
			for _, f := range c.Plan.Flips {
				f.Parts[3].SteadyBytes -= c.Geometry.DensePages * c.Geometry.Proto.PageBytes
			}
			for _, f := range c.Plan.Flips[:len(c.Plan.Flips)-1] {
				f.Parts[3].SteadyBytes += c.Geometry.DensePages * c.Geometry.Proto.PageBytes
			}
		}, "rank 3 is without the dense weights", true},
		{"groups of two wanted", func(c *checker.Case) { c.Shape = halves }, "4 attention groups, wanted 2", false},
	})
}
