package plancli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/migration"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// PlanReport is what a transition would do.
type PlanReport struct {
	Model           string         `json:"model"`
	From            World          `json:"from"`
	To              World          `json:"to"`
	ExpertBytes     uint64         `json:"expertBytes"`
	BoundBytes      uint64         `json:"boundBytes"` // lower bound for any layout of that shape
	DenseBytes      uint64         `json:"denseBytes"`
	LocalBytes      uint64         `json:"localBytes"`
	CheckpointBytes uint64         `json:"checkpointBytes"` // part of expert and dense bytes
	Flips           []FlipReport   `json:"flips"`
	Rounds          *int           `json:"rounds,omitempty"` // of whole experts; absent where experts are sliced
	Ranks           []RankReport   `json:"ranks"`
	Transfers       []Transfer     `json:"transfers"`
	Balance         *BalanceReport `json:"balance,omitempty"`
}

// FlipReport is one flip of the chain.
type FlipReport struct {
	Kind   string `json:"kind"`
	Layers int    `json:"layers"` // number of layers that it changes
}

// RankReport is the part of one rank. Brings and Drops count a layer's experts, whole or in part.
type RankReport struct {
	Rank        int    `json:"rank"`
	Fate        string `json:"fate"` // stays, joins or leaves
	Brings      int    `json:"brings"`
	BringsBytes uint64 `json:"bringsBytes"`
	DenseBytes  uint64 `json:"denseBytes"`
	Drops       int    `json:"drops"`
	DropsBytes  uint64 `json:"dropsBytes"`
	PeakBytes   uint64 `json:"peakBytes"`
	SteadyBytes uint64 `json:"steadyBytes"`
}

// Transfer is the copy from one rank to another. From -1 is the checkpoint. Pieces are runs of rows of one expert.
type Transfer struct {
	From   int    `json:"from"`
	To     int    `json:"to"`
	Pieces int    `json:"pieces"`
	Bytes  uint64 `json:"bytes"`
}

// expertOf identifies an expert of a MoE layer.
type expertOf struct{ layer, expert uint32 }

func held(l *tangramv1.Layout, v *geometry.View, rank int) map[expertOf][]geometry.Run {
	out := map[expertOf][]geometry.Run{}
	if l != nil && rank >= 0 && rank < len(l.Members) {
		inv := layout.InventoryOf(l, v, uint32(rank))
		for i := range inv.Layer {
			k := expertOf{inv.Layer[i], inv.Expert[i]}
			out[k] = append(out[k], geometry.Run{Start: inv.GranuleStart[i], Count: inv.GranuleCount[i]})
		}
	}
	return out
}

// fill fills the report from a plan's parts. Ranks are those between join and leave: the old ones, then the joiners.
func (r *PlanReport) fill(v *geometry.View, current *tangramv1.Layout, result *planner.Result) {
	p := result.Plan
	r.ExpertBytes, r.BoundBytes, r.DenseBytes = p.Cost.GetExpertBytes(), p.Cost.GetExpertBoundBytes(), p.Cost.GetDenseBytes()
	r.LocalBytes, r.CheckpointBytes = p.Cost.GetLocalBytes(), p.Cost.GetCheckpointBytes()
	before, after := len(current.GetMembers()), len(result.Final.GetMembers())
	var moves []migration.Move
	transfers := map[[2]int]*Transfer{}
	brought := map[uint32]map[expertOf]bool{}
	for rank := range max(before, after) {
		r.Ranks = append(r.Ranks, RankReport{Rank: rank, Fate: fate(rank, before, after)})
	}
	has := make([]map[expertOf][]geometry.Run, len(r.Ranks))
	for rank := range has {
		has[rank] = held(current, v, rank)
		r.Ranks[rank].drops(v, has[rank], held(result.Final, v, rank))
		if rank < before {
			r.Ranks[rank].PeakBytes = layout.SteadyBytes(current, v, uint32(rank))
		}
		if rank < after {
			r.Ranks[rank].SteadyBytes = layout.SteadyBytes(result.Final, v, uint32(rank))
		}
	}
	for _, flip := range p.Flips {
		r.Flips = append(r.Flips, FlipReport{strings.TrimPrefix(flip.Kind.String(), "FLIP_KIND_"), len(flip.Delta.GetLayers())})
		for _, part := range flip.Parts {
			to := &r.Ranks[part.Rank]
			to.PeakBytes = max(to.PeakBytes, part.PeakBytes)
			if len(part.Dense.GetSourceByPart()) > 0 {
				to.DenseBytes += v.Proto.DenseBytes
			}
			f := part.Fetches
			for i := range f.GetLayer() {
				k, source := expertOf{f.Layer[i], f.Expert[i]}, int(f.Source[i])-1
				bytes := uint64(f.GranuleCount[i]) * v.Proto.GranuleBytes
				if len(has[part.Rank][k]) == 0 { // the tail comes with the first granule
					bytes += v.Proto.ExpertTailBytes
				}
				if brought[part.Rank] == nil {
					brought[part.Rank] = map[expertOf]bool{}
				}
				brought[part.Rank][k] = true
				has[part.Rank][k] = append(has[part.Rank][k], geometry.Run{Start: f.GranuleStart[i], Count: f.GranuleCount[i]})
				t := transfers[[2]int{source, to.Rank}]
				if t == nil {
					t = &Transfer{From: source, To: to.Rank}
					transfers[[2]int{source, to.Rank}] = t
				}
				t.Pieces, t.Bytes = t.Pieces+1, t.Bytes+bytes
				to.Brings, to.BringsBytes = len(brought[part.Rank]), to.BringsBytes+bytes
				moves = append(moves, migration.Move{Layer: int32(f.Layer[i]), Expert: int32(f.Expert[i]), To: int32(to.Rank), Source: int32(source)})
			}
		}
	}
	for _, t := range transfers {
		r.Transfers = append(r.Transfers, *t)
	}
	slices.SortFunc(r.Transfers, func(a, b Transfer) int { return cmp.Or(a.To-b.To, a.From-b.From) })
	if (current == nil || layout.Is(current, layout.Expert)) && layout.Is(result.Final, layout.Expert) {
		rounds := migration.Rounds(moves)
		r.Rounds = &rounds
	}
}

func fate(rank, before, after int) string {
	switch {
	case rank >= before:
		return "joins"
	case rank >= after:
		return "leaves"
	}
	return "stays"
}

// drops counts the pieces that a rank holds now but not in the target.
func (r *RankReport) drops(v *geometry.View, before, after map[expertOf][]geometry.Run) {
	for k, runs := range before {
		gone, whole := uint32(0), uint32(0)
		for _, run := range runs {
			stays := uint32(0)
			for _, next := range after[k] {
				stays += run.Overlap(next).Count
			}
			gone, whole = gone+run.Count-stays, whole+run.Count
		}
		if gone == 0 {
			continue
		}
		r.Drops++
		r.DropsBytes += uint64(gone) * v.Proto.GranuleBytes
		if gone == whole && len(after[k]) == 0 {
			r.DropsBytes += v.Proto.ExpertTailBytes
		}
	}
}

// Table of the report.
func (r *PlanReport) Table(w *tabwriter.Writer, most int) {
	from := "no layout"
	if r.From.Ranks > 0 {
		from = fmt.Sprintf("%v on %d ranks", r.From, r.From.Ranks)
	}
	line(w, "%s: %s -> %v on %d ranks", r.Model, from, r.To, r.To.Ranks)
	if len(r.Flips) == 0 {
		line(w, "no changes: the active layout is the target layout")
	} else {
		line(w, "%s: %s", plural(len(r.Flips), "flip"), folded(r.Flips))
	}
	line(w, "expert bytes %s (%s; lower bound %s), dense bytes %s, copied within ranks %s, read from the checkpoint %s", Count(r.ExpertBytes), Size(r.ExpertBytes), Size(r.BoundBytes), Size(r.DenseBytes),
		Size(r.LocalBytes), Size(r.CheckpointBytes))
	if r.Rounds != nil {
		line(w, "%s; in each round a rank sends and receives at most one expert", plural(*r.Rounds, "round"))
	}
	line(w, "")
	line(w, "rank\t\texperts in\tbytes in\tdense in\texperts out\tbytes out\tpeak memory\tmemory after\t")
	for _, k := range r.Ranks {
		line(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t", k.Rank, k.Fate, Count(k.Brings), Size(k.BringsBytes), Size(k.DenseBytes), Count(k.Drops), Size(k.DropsBytes), Size(k.PeakBytes),
			Size(k.SteadyBytes))
	}
	_ = w.Flush() // another table follows
	if len(r.Transfers) > 0 {
		line(w, "")
		line(w, "from\tto\tpieces\tbytes\t")
	}
	for i, t := range r.Transfers {
		if most > 0 && i == most {
			line(w, "%s more\t\t\t\t", Count(len(r.Transfers)-most))
			break
		}
		source := fmt.Sprint(t.From)
		if t.From < 0 {
			source = "checkpoint"
		}
		line(w, "%s\t%d\t%s\t%s\t", source, t.To, Count(t.Pieces), Size(t.Bytes))
	}
	if r.Balance != nil {
		_ = w.Flush()
		line(w, "")
		r.Balance.Table(w, most)
	}
}

// folded joins equal consecutive flips, with their number.
func folded(flips []FlipReport) string {
	var out []string
	for i := 0; i < len(flips); {
		n := 1
		for i+n < len(flips) && flips[i+n] == flips[i] {
			n++
		}
		text := flips[i].Kind
		if n > 1 {
			text = fmt.Sprintf("%s x %s", Count(n), text)
		}
		if flips[i].Layers > 0 {
			text += fmt.Sprintf(" (%s)", plural(flips[i].Layers, "layer"))
		}
		out = append(out, text)
		i += n
	}
	return strings.Join(out, ", ")
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return Count(n) + " " + what + "s"
}
