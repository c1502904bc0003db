package bench

import (
	"fmt"
	"io"
	"time"

	"tangram.dev/operator/internal/bench/peers"
	"tangram.dev/operator/pkg/migration"
	"tangram.dev/operator/pkg/placement"
)

// Rounds schedules the moves of full and incremental plans of workload A, and of the loss of a rank. It compares the
// number of rounds with the most moves at one rank.
func Rounds(out, progress io.Writer, quick bool) error {
	w := eplbWorkloads()[0]
	windows, err := w.windows(2)
	if err != nil {
		return err
	}
	old := make([]peers.Layout, w.layers)
	for l := range old {
		old[l] = peers.Default(w.experts, w.ranks, w.slots)
	}
	worst, schedules := 0.0, 0
	metrics := map[string]any{}
	var p placement.Planner
	for _, mode := range []string{"full", "incremental", "dead-rank"} {
		problem := &placement.Problem{Layers: make([]placement.Layer, w.layers), Ranks: w.rankList(), Old: w.placement(old)}
		for i := range eplbWindows {
			for l := range problem.Layers {
				problem.Layers[l].Load = windows[i][l]
			}
			plan, gone := p.Incremental, make([]bool, w.ranks)
			if mode == "full" {
				plan = p.Full
			}
			if mode == "dead-rank" && i > 0 {
				gone[i], problem.Ranks[i].Slots = true, 0
			}
			r, err := plan(problem, placement.Options{Price: eplbPrice})
			if err != nil {
				return fmt.Errorf("rounds: %s: %w", mode, err)
			}
			begin := time.Now()
			moves, err := migration.Moves(problem.Old, r.Placement, gone)
			if err != nil {
				return fmt.Errorf("rounds: %s: %w", mode, err)
			}
			migration.Sources(moves)
			n := migration.Rounds(moves)
			millis := float64(time.Since(begin).Microseconds()) / 1000
			used, degree, err := countRounds(moves, w.ranks)
			if err != nil {
				return fmt.Errorf("rounds: %s: %w", mode, err)
			}
			if used != n {
				return fmt.Errorf("rounds: %s: the schedule uses %d rounds and says %d", mode, used, n)
			}
			problem.Old = r.Placement
			if degree == 0 {
				continue
			}
			schedules++
			worst = max(worst, float64(used)/float64(degree))
			if err := printLine(out, map[string]any{"bench": "rounds", "case": mode, "window": i, "moves": len(moves), "rounds": used, "degree": degree,
				"most_sent": mostSent(moves, w.ranks), "ms": millis}); err != nil {
				return err
			}
			metrics[mode+"_ms"] = millis
		}
	}
	if _, err := fmt.Fprintf(progress, "rounds: %d schedules, rounds over degree %.2f\n", schedules, worst); err != nil {
		return err
	}
	metrics["schedules"] = schedules
	return printLine(out, Summary{Bench: "rounds", Value: worst, Unit: "rounds over degree", Ceiling: 1, Ratio: worst,
		Metrics: metrics, Env: environment(quick)})
}

// countRounds counts rounds from the moves alone, and rejects two sends or two receives of a rank in one round.
func countRounds(moves []migration.Move, ranks int) (rounds, degree int, err error) {
	type port struct {
		rank, round int32
		sends       bool
	}
	busy, in, out := map[port]bool{}, make([]int, ranks), make([]int, ranks)
	for _, m := range moves {
		ends := []port{{m.To, m.Round, false}}
		in[m.To]++
		degree = max(degree, in[m.To])
		if m.Source != migration.Nowhere {
			ends = append(ends, port{m.Source, m.Round, true})
			out[m.Source]++
			degree = max(degree, out[m.Source])
		}
		for _, at := range ends {
			if busy[at] {
				return 0, 0, fmt.Errorf("rank %d has two moves in round %d (sends: %v)", at.rank, at.round, at.sends)
			}
			busy[at] = true
		}
		rounds = max(rounds, int(m.Round)+1)
	}
	return rounds, degree, nil
}

func mostSent(moves []migration.Move, ranks int) int {
	out, most := make([]int, ranks), 0
	for _, m := range moves {
		if m.Source != migration.Nowhere {
			out[m.Source]++
			most = max(most, out[m.Source])
		}
	}
	return most
}
