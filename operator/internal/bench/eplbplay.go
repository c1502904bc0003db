package bench

import (
	"fmt"
	"io"

	"tangram.dev/operator/internal/bench/peers"
	"tangram.dev/operator/pkg/placement"
)

// player is a policy that goes through the windows; each of its plans starts from its own last placement.
type player struct {
	name  string
	timed bool
	old   []peers.Layout
	score eplbScore
	// plan plans all layers of a window and may be called repeatedly. taken returns the result, outside of the timing.
	plan  func(window [][]float64, old []peers.Layout) error
	taken func(window [][]float64, old []peers.Layout) []peers.Layout
}

// figures returns the figures of a workload over seeds, and prints a line per policy.
func (w eplbWorkload) figures(out io.Writer, seeds []uint64, effort eplbEffort) (*eplbSeeds, error) {
	all := &eplbSeeds{}
	sums, names := map[string]*eplbScore{}, []string{}
	for _, seed := range seeds {
		windows, err := w.windows(seed)
		if err != nil {
			return nil, err
		}
		players := w.players(effort.few)
		if err := w.play(players, windows, effort.rounds); err != nil {
			return nil, fmt.Errorf("%s, seed %d: %w", w.name, seed, err)
		}
		scores := map[string]*eplbScore{}
		for _, p := range players {
			scores[p.name] = &p.score
			if sums[p.name] == nil {
				sums[p.name], names = &eplbScore{}, append(names, p.name)
			}
			sums[p.name].join(&p.score)
		}
		all.add(seed, scores)
	}
	for _, name := range names {
		if err := printLine(out, sums[name].line(w, name, sums["greedy"])); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// players of a workload: the greedy, ours, FlashLB-like, and unless `few`, other algorithms in use.
func (w eplbWorkload) players(few bool) []*player {
	first := make([]peers.Layout, w.layers)
	for l := range first {
		first[l] = peers.Default(w.experts, w.ranks, w.slots)
	}
	out := []*player{w.peer(peers.Greedy{}), w.ours("full"), w.ours("incremental")}
	out = append(out, w.peer(&peers.FlashLB{}))
	if !few {
		out = append(out, w.peer(peers.DeepSeek{}), w.peer(peers.Swift{}))
		if w.groups > 1 {
			out = append(out, w.peer(peers.DeepSeek{Groups: w.groups, Nodes: max(1, w.ranks/8)}))
			if w.ranks > 8 {
				out = append(out, w.ours("full-groups"))
			}
		}
	}
	for i, p := range out {
		p.old, p.score.seeds, p.timed = first, 1, !few || i < 3
	}
	return out
}

// play goes through the windows; the timed policies alternate in each round.
func (w eplbWorkload) play(players []*player, windows [][][]float64, rounds int) error {
	ranks := w.rankList()
	for i := range eplbWindows {
		floors := make([]float64, w.layers)
		for l, row := range windows[i] {
			floors[l] = placement.EvenFloor(row, ranks)
		}
		var timed []*player
		var works []func() error
		for _, p := range players {
			work := func() error { return p.plan(windows[i], p.old) }
			if p.timed {
				timed, works = append(timed, p), append(works, work)
				continue
			}
			if err := work(); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		}
		times, err := alternating(rounds, works...)
		if err != nil {
			return err
		}
		for k, p := range timed {
			p.score.millis = append(p.score.millis, times[k]...)
		}
		for _, p := range players {
			now := p.taken(windows[i], p.old)
			p.score.add(w, now, p.old, windows[i], windows[i+1], floors)
			if p.score.layersUnderFloor > 0 {
				return fmt.Errorf("%s: %d layers are below the floor: the floor is wrong", p.name, p.score.layersUnderFloor)
			}
			p.old = now
		}
	}
	return nil
}

func (s *eplbScore) add(w eplbWorkload, now, old []peers.Layout, this, next [][]float64, floors []float64) {
	for l := range now {
		peak, mean := peers.Peak(this[l], now[l])
		s.peak, s.mean, s.floor = s.peak+peak, s.mean+mean, s.floor+floors[l]
		if s.worst == 0 || mean/peak < s.worst {
			s.worst = mean / peak
		}
		if peak < floors[l]*(1-1e-9) {
			s.layersUnderFloor++
		}
		peak, mean = peers.Peak(next[l], now[l])
		s.nextPeak, s.nextMean = s.nextPeak+peak, s.nextMean+mean
		s.moved += peers.Moved(old[l], now[l])
	}
	s.slots += w.layers * w.ranks * w.slots
}

func (w eplbWorkload) rankList() []placement.Rank {
	out := make([]placement.Rank, w.ranks)
	for g := range out {
		out[g] = placement.Rank{Slots: w.slots, Node: g / 8}
	}
	return out
}

// ours is a mode of the planner. Its problem stays in the planner's form, so only the plan is timed.
func (w eplbWorkload) ours(mode string) *player {
	planner, out := placement.Planner{}, &player{name: mode}
	problem := &placement.Problem{Layers: make([]placement.Layer, w.layers), Ranks: w.rankList()}
	for e := range w.experts {
		problem.Groups = append(problem.Groups, e*w.groups/w.experts)
	}
	var result *placement.Result
	out.plan = func(window [][]float64, old []peers.Layout) (err error) {
		for l := range problem.Layers {
			problem.Layers[l].Load = window[l]
		}
		if problem.Old == nil {
			problem.Old = w.placement(old)
		}
		switch mode {
		case "full":
			result, err = planner.Full(problem, placement.Options{Groups: placement.IgnoreGroups})
		case "full-groups":
			result, err = planner.Full(problem, placement.Options{Groups: placement.KeepGroups})
		default:
			result, err = planner.Incremental(problem, placement.Options{Price: eplbPrice})
		}
		return err
	}
	out.taken = func([][]float64, []peers.Layout) []peers.Layout {
		for _, f := range result.Layers {
			out.score.home += f.Home * f.Mean // 0 if groups are not kept
		}
		problem.Old = result.Placement
		return w.layouts(result.Placement)
	}
	return out
}

// peer is a baseline, planned layer by layer.
func (w eplbWorkload) peer(policy peers.Policy) *player {
	now := make([]peers.Layout, w.layers)
	return &player{name: policy.Name(),
		plan: func(window [][]float64, old []peers.Layout) error {
			for l := range now {
				now[l] = policy.Plan(l, window[l], old[l])
			}
			return nil
		},
		taken: func(window [][]float64, old []peers.Layout) []peers.Layout {
			if learns, ok := policy.(*peers.FlashLB); ok {
				for l := range now {
					learns.Remember(l, window[l], old[l], now[l])
				}
			}
			return append([]peers.Layout(nil), now...)
		}}
}

func (w eplbWorkload) placement(layers []peers.Layout) *placement.Placement {
	out := &placement.Placement{Experts: w.experts, Start: []int32{0}}
	for g := range w.ranks {
		out.Start = append(out.Start, int32((g+1)*w.slots))
	}
	for _, l := range layers {
		for _, held := range l {
			out.Slot = append(out.Slot, held...)
		}
	}
	return out
}

func (w eplbWorkload) layouts(p *placement.Placement) []peers.Layout {
	out := make([]peers.Layout, w.layers)
	for l := range out {
		for g := range w.ranks {
			out[l] = append(out[l], p.Rank(l, g))
		}
	}
	return out
}
