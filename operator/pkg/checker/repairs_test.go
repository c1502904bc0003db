package checker_test

import (
	"testing"

	"tangram.dev/operator/pkg/checker"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

func broken(t *testing.T, mode string) checker.Case {
	t.Helper()
	w := &world{v: view(t, 0)}
	if mode == "TensorParallel" {
		w.to(t, 4, tensorShape)
	} else {
		w.to(t, 4, expertShape)
	}
	return w.repair(t, 1)
}

func delta(c *checker.Case) *tangramv1.LayoutDelta { return c.Plan.Flips[0].Delta }

func TestCheckRejectsRepairChangingSurvivors(t *testing.T) {
	for _, mode := range []string{"ExpertParallel", "TensorParallel"} {
		t.Run(mode, func(t *testing.T) {
			object(t, broken(t, mode), []spoilt{
				{"a flip too many", func(c *checker.Case) { c.Plan.Flips = append(c.Plan.Flips, c.Plan.Flips[0]) }, "one of 2 flips", false},
				{"more survive", func(c *checker.Case) { c.Lost = nil }, "4 members survive, the layout has 3", false},
				{"fewer survive", func(c *checker.Case) {
					c.Lost = map[string]bool{c.Before.Members[1].Id: true, c.Before.Members[0].Id: true}
				}, "2 members survive, the layout has 3", false},
				{"another one died", func(c *checker.Case) { c.Lost = map[string]bool{c.Before.Members[0].Id: true} }, "not the survivor", false},
				{"in another order", func(c *checker.Case) {
					m := delta(c).Members
					m[1], m[2] = m[2], m[1]
				}, "not the survivor", true},
				{"numbered otherwise", func(c *checker.Case) { delta(c).Renumber[2], delta(c).Renumber[3] = 3, 2 }, "not the survivor", true},
				{"new ranks for too few", func(c *checker.Case) { delta(c).Renumber = nil }, "new ranks of 0 members", false},
				{"without dense", func(c *checker.Case) { delta(c).Dense = &tangramv1.DenseLayout{Ranks: []uint32{0, 1}} }, "rank 2 is without the dense", true},
				{"more banks", func(c *checker.Case) { delta(c).Banks = c.Before.Banks + 1 }, "banks, there were", true},
				{"another bank", func(c *checker.Case) { l := delta(c).Layers; l[len(l)-1].BankOffset++ }, "does not any more", true},
				{"without heads", func(c *checker.Case) {
					l := delta(c).Layers[1]
					l.AttentionGroupSize, l.Attention = 1, []*tangramv1.AttentionGroup{{Ranks: []uint32{0}, QueryHeadBounds: []uint32{0, 12}}}
				}, "is in 0 attention groups, wanted 1", true},
			})
		})
	}
}

func TestCheckRejectsUnevenRepair(t *testing.T) {
	object(t, broken(t, "ExpertParallel"), []spoilt{
		{"all to one", func(c *checker.Case) {
			g := delta(c).Layers[2].Experts
			for i := 1; i < len(g); i++ {
				for s, entry := range g[i].Slots {
					if had := c.Before.Layers[2].Experts; entry != 0 && !contains(had, c.Before.Members, c.Lost, entry) {
						g[0].Slots, g[i].Slots[s] = append(g[0].Slots, entry), 0
					}
				}
			}
		}, "another one has", true},
		{"one more of what is served", func(c *checker.Case) {
			g, had := delta(c).Layers[2].Experts, c.Before.Layers[2].Experts
			for s, entry := range g[0].Slots {
				if entry != 0 && !contains(had, c.Before.Members, c.Lost, entry) {
					g[2].Slots, g[0].Slots[s] = append(g[2].Slots, entry), 0
				}
			}
			g[0].Slots = append(g[0].Slots, g[1].Slots[0])
		}, "which a survivor serves", true},
		{"other groups", func(c *checker.Case) {
			l := delta(c).Layers[2]
			l.ExpertGroupSize = 3
			g := &tangramv1.ExpertGroup{Ranks: []uint32{0, 1, 2}}
			for e := range c.Geometry.Proto.Experts {
				g.Slots = append(g.Slots, e+1)
			}
			l.Experts = []*tangramv1.ExpertGroup{g}
		}, "does not any more", true},
	})
	object(t, broken(t, "TensorParallel"), []spoilt{
		{"a position of one that lives", func(c *checker.Case) {
			r := delta(c).Layers[2].Experts[0].Ranks
			r[2] = r[0]
		}, "does not any more", true},
		{"other slots", func(c *checker.Case) {
			g := delta(c).Layers[2].Experts[0]
			g.Slots = append(g.Slots, 0)
		}, "changes its slots", true},
	})
}

// contains reports whether a survivor already serves an expert.
func contains(groups []*tangramv1.ExpertGroup, members []*tangramv1.Member, lost map[string]bool, entry uint32) bool {
	for _, g := range groups {
		for _, e := range g.Slots {
			if e == entry && !lost[members[g.Ranks[0]].Id] {
				return true
			}
		}
	}
	return false
}
