package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"tangram.dev/operator/internal/plancli"
	"tangram.dev/operator/pkg/budget"
	"tangram.dev/operator/pkg/load"
)

// budgetFlags are the measured costs; all of them must be given, or none.
var budgetFlags = []string{"expert-bytes", "block-bytes", "kv-blocks", "kv-demand", "loss-per-block", "moe-seconds", "other-seconds"}

type balanceFlags struct {
	in                                   plancli.BalanceInput
	loads, format, old, oldFormat        string
	demand, output, placementFile        string
	every, firstLayer, most, budgetCurve int
	costs                                budget.Input
}

func balanceCommand() *cobra.Command {
	var f balanceFlags
	c := &cobra.Command{
		Use: "balance", Short: "Place experts for a recorded load and print the improvement", Args: flagsOnly,
		Long: `Places experts for a recorded load and prints the improvement.

Balancedness is the mean load of the ranks divided by the maximum; 1.0 is perfectly balanced. The table shows:
  now          balancedness of the active placement
  after        balancedness after the moves
  reachable    balancedness of the best placement that the search finds with this number of slots
  upper bound  limit for every placement that splits tokens evenly between expert replicas
  weighted     balancedness after the moves, with the best split of tokens between expert replicas`,
		Example: "  tangram balance --load loads.json --ranks 4 --redundant-experts 4 --price 0.002\n" +
			"  tangram balance --load loads.json --ranks 4 --redundant-experts 4 --old placement.json --max-moves 6 --placement-file next.json\n" +
			"  curl -s http://engine:8000/metrics | tangram balance --load - --format ascend --ranks 16 --nodes 2 --mode full -o json\n" +
			"  tangram balance --load loads.json --ranks 4 --budget-curve 16",
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c) },
	}
	fs := c.Flags()
	fs.StringVar(&f.loads, "load", "", "file with the expert load; -: standard input")
	fs.StringVar(&f.format, "format", "auto", "format of --load: auto, "+plancli.LoadFormats)
	fs.IntVar(&f.every, "every", 1, "number of entries of --load per window (engines record one entry per step)")
	fs.IntVar(&f.firstLayer, "first-layer", 0, "index of the first layer of --load with routed experts (SGLang records dense layers too, as zeros)")
	fs.StringVar(&f.demand, "demand", plancli.Forecast, "load to plan for: forecast (of the next window), last (window) or sum (of all windows)")
	fs.IntVar(&f.in.Ranks, "ranks", 0, "number of ranks")
	fs.IntVar(&f.in.Nodes, "nodes", 1, "number of nodes; ranks are distributed over them in order and as evenly as possible")
	fs.IntVar(&f.in.Slots, "slots", 0, "number of expert slots per rank and layer; 0: computed from --redundant-experts")
	fs.IntVar(&f.in.Redundant, "redundant-experts", 0, "number of redundant experts per layer, rounded up so that all ranks have the same number of slots")
	fs.IntVar(&f.in.Groups, "groups", 0, "number of expert groups of the router (DeepSeek-V3: 8); a group stays on one node where that improves the balance; 0: none")
	fs.StringVar(&f.old, "old", "", "file with the active placement; empty: one replica of each expert, in order")
	fs.StringVar(&f.oldFormat, "old-format", "auto", "format of --old: auto, "+plancli.PlacementFormats)
	fs.StringVar(&f.in.Mode, "mode", plancli.Incremental, "search: incremental (moves from the active placement that are worth their price) or full (placement computed from scratch, where it is worth the price)")
	fs.IntVar(&f.in.MaxMoves, "max-moves", 0, "maximum number of experts to move; 0: every move that is worth its price")
	fs.Float64Var(&f.in.Price, "price", 0, "minimum improvement of a layer's max/mean load per moved expert")
	fs.StringVar(&f.placementFile, "placement-file", "", "file to write the placement to, as JSON [layer][rank][experts]; empty: not written")
	fs.IntVar(&f.budgetCurve, "budget-curve", 0, "maximum number of redundant experts per layer for which to print the balancedness; with the seven cost flags also the best number; 0: no curve")
	fs.Int64Var(&f.costs.ExpertBytes, "expert-bytes", 0, "cost: size of one expert of one layer, in bytes")
	fs.Int64Var(&f.costs.BlockBytes, "block-bytes", 0, "cost: size of one KV block of all layers, in bytes")
	fs.IntVar(&f.costs.KVBlocks, "kv-blocks", 0, "cost: number of KV blocks of a rank without redundant experts")
	fs.IntVar(&f.costs.KVDemand, "kv-demand", 0, "cost: number of KV blocks that the requests of a rank need")
	fs.Float64Var(&f.costs.LossPerBlock, "loss-per-block", 0, "cost: fraction of throughput lost per missing KV block")
	fs.Float64Var(&f.costs.MoESeconds, "moe-seconds", 0, "cost: duration of the MoE part of a step with balanced load, in seconds")
	fs.Float64Var(&f.costs.OtherSeconds, "other-seconds", 0, "cost: duration of the other parts of a step, in seconds")
	fs.StringVarP(&f.output, "output", "o", "table", "output format: "+plancli.Outputs)
	fs.IntVar(&f.most, "lines", 10, "maximum number of layers in the table; 0: all")
	required(c, "load", "ranks")
	return c
}

func required(c *cobra.Command, names ...string) {
	for _, name := range names {
		if err := c.MarkFlagRequired(name); err != nil {
			panic(err) // not a flag: a bug of this file
		}
	}
}

func (f *balanceFlags) run(c *cobra.Command) error {
	if err := plancli.CheckOutput(f.output); err != nil {
		return err
	}
	if err := cmp.Or(without(c, "old", "old-format"), onceStdin(c, "load", "old")); err != nil {
		return err
	}
	given := 0
	for _, name := range budgetFlags {
		if c.Flags().Changed(name) {
			given++
		}
	}
	switch {
	case given > 0 && f.budgetCurve == 0:
		return fmt.Errorf("the cost flags have no effect without --budget-curve: set --budget-curve or remove them")
	case given > 0 && given < len(budgetFlags):
		return fmt.Errorf("found %d of %d cost flags; want all of --%s", given, len(budgetFlags), strings.Join(budgetFlags, ", --"))
	}
	var said string
	var err error
	w := windows{f.every, f.firstLayer}
	if f.in.Loads, f.in.Old, said, err = w.read(f.loads, f.format, f.demand, c.InOrStdin(), c.ErrOrStderr()); err != nil {
		return err
	}
	if f.old != "" {
		o := load.Options{Layers: len(f.in.Loads), Experts: len(f.in.Loads[0])}
		if f.in.Old, err = plancli.ReadPlacement(f.old, f.oldFormat, f.in.Ranks, o, c.InOrStdin()); err != nil {
			return err
		}
	}
	report, err := plancli.Balance(f.in)
	if err != nil {
		return err
	}
	report.Demand = said
	if f.budgetCurve != 0 {
		costs := &f.costs
		if given == 0 {
			costs = nil
		}
		if report.Budget, err = plancli.Curve(f.in.Loads, f.in.Ranks, f.in.Nodes, f.budgetCurve, costs); err != nil {
			return err
		}
	}
	if f.placementFile != "" {
		wire, err := json.Marshal(report.Placement)
		if err != nil {
			return err
		}
		if err := os.WriteFile(f.placementFile, append(wire, '\n'), 0o600); err != nil {
			return fmt.Errorf("--placement-file: %w", err)
		}
	}
	return plancli.Print(c.OutOrStdout(), f.output, report, f.most)
}
