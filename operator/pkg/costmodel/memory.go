package costmodel

import (
	"fmt"
	"strings"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/kernels"
)

// Memory of a rank and its other uses, in bytes.
type Memory struct {
	RankBytes         uint64
	DenseBytes        uint64 // on each rank, without experts; 0: attention projections, split over an attention group
	SpareBanks        int    // docs/architecture.md, 4.2
	Redundant         int    // expert slots per layer beyond one per expert (g = 1), rounded up to equal ranks
	GraphBytes        uint64 // captured graphs, all shapes
	CommunicatorBytes uint64
	ActivationBytes   uint64
	NoRepairHeadroom  bool // do not reserve room to repair a lost rank's experts
}

// Item of a budget.
type Item struct {
	Name  string
	Bytes uint64
}

// Budget of a rank: its items add up to RankBytes; the last is KV.
type Budget struct {
	Items       []Item
	TokenBytes  uint64 // of KV, on each rank of the group that holds the token
	GroupTokens int    // capacity of one attention group
	WorldTokens int    // GroupTokens of all groups
}

// Budget returns the budget of each rank in a shape. It fails, with the items in the error, if nothing is left for KV.
func (m Memory) Budget(v *geometry.View, s kernels.Shape) (Budget, error) {
	if err := s.Check(); err != nil {
		return Budget{}, err
	}
	g := v.Proto
	layer := uint64(g.Experts) * v.ExpertBytes
	experts := layer * uint64(v.MoELayers())
	ranks, t := uint64(s.Ranks), uint64(s.AttentionGroup)
	dense := m.DenseBytes
	if dense == 0 {
		// Queries and output are hidden x heads x head size, keys and values hidden x KV heads x head size; two bytes
		// each.
		dense = up(uint64(g.Layers)*4*uint64(g.Hidden)*uint64(g.HeadDim)*uint64(g.QueryHeads+g.KvHeads), t)
	}
	b := Budget{Items: []Item{
		{"experts", up(experts, ranks)},
		{"dense weights", dense},
		{"spare banks", uint64(m.SpareBanks) * up(layer, ranks)},
		{"graphs", m.GraphBytes},
		{"communicators", m.CommunicatorBytes},
		{"activations", m.ActivationBytes},
	}}
	if ranks > 1 && !m.NoRepairHeadroom {
		b.Items = append(b.Items, Item{"headroom for repair", up(up(experts, ranks), ranks-1)})
	}
	if m.Redundant > 0 && s.ExpertGroup == 1 {
		slots := up(uint64(g.Experts)+uint64(m.Redundant), ranks)
		b.Items = append(b.Items, Item{"redundant experts", (slots*v.ExpertBytes - up(layer, ranks)) * uint64(v.MoELayers()+m.SpareBanks)})
	}
	var used uint64
	for _, i := range b.Items {
		used += i.Bytes
	}
	if used >= m.RankBytes {
		var parts []string
		for _, i := range b.Items {
			if i.Bytes > 0 {
				parts = append(parts, fmt.Sprintf("%s %.2f GB", i.Name, float64(i.Bytes)/1e9))
			}
		}
		return Budget{}, fmt.Errorf("memory: %s in shape %v leaves no memory for the KV cache on a rank of %.2f GB: use more ranks or more memory per rank (%s)", g.Model, s, float64(m.RankBytes)/1e9, strings.Join(parts, ", "))
	}
	b.TokenBytes = TokenBytes(v, s)
	b.Items = append(b.Items, Item{"KV", m.RankBytes - used})
	b.GroupTokens = int((m.RankBytes - used) / b.TokenBytes)
	b.WorldTokens = b.GroupTokens * s.Groups()
	return b, nil
}

// TokenBytes returns the KV bytes of one token on each rank of the group that holds it. With more ranks than KV heads,
// heads are replicated. An MLA latent is one head, and every rank of the group holds it whole.
func TokenBytes(v *geometry.View, s kernels.Shape) uint64 {
	g := v.Proto
	return g.KvHeadTokenBytes * max(1, up(uint64(g.KvHeads), uint64(s.AttentionGroup))) * uint64(g.Layers)
}

func up(n, by uint64) uint64 { return (n + by - 1) / by }
