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

// budgetFlags are the measured costs; all of them or none.
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
		Use: "balance", Short: "where experts should live under a recorded load, and what that is worth", Args: flagsOnly,
		Long: `Where experts should live under a recorded load, and what that is worth. Balancedness is mean over max of the ranks' loads, 1 is best:
now, after the moves, reachable with so many slots, the floor (no placement with an even split between replicas is above it), and
weighted (of the placement after the moves, with the best split).`,
		Example: "  tangram balance --load loads.json --ranks 4 --redundant-experts 4 --price 0.002\n" +
			"  tangram balance --load loads.json --ranks 4 --redundant-experts 4 --old placement.json --max-moves 6 --placement-file next.json\n" +
			"  curl -s http://engine:8000/metrics | tangram balance --load - --format ascend --ranks 16 --nodes 2 --mode full -o json\n" +
			"  tangram balance --load loads.json --ranks 4 --budget-curve 16",
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c) },
	}
	fs := c.Flags()
	fs.StringVar(&f.loads, "load", "", "file of loads; - is stdin")
	fs.StringVar(&f.format, "format", "auto", "of --load: auto, "+plancli.LoadFormats)
	fs.IntVar(&f.every, "every", 1, "entries of the file that make one window (engines record steps)")
	fs.IntVar(&f.firstLayer, "first-layer", 0, "first layer of the file with routed experts (SGLang counts dense ones too, as zeros)")
	fs.StringVar(&f.demand, "demand", plancli.Forecast, "load to plan for: forecast (of the next window), last (window), sum (of all)")
	fs.IntVar(&f.in.Ranks, "ranks", 0, "ranks of the world")
	fs.IntVar(&f.in.Nodes, "nodes", 1, "nodes, over which the ranks are spread in order, as evenly as they go")
	fs.IntVar(&f.in.Slots, "slots", 0, "expert slots of a rank per layer; 0: by --redundant-experts")
	fs.IntVar(&f.in.Redundant, "redundant-experts", 0, "slots per layer beyond one for each expert, rounded up to the same number on each rank")
	fs.IntVar(&f.in.Groups, "groups", 0, "expert groups of the router, kept in one node where that pays (DeepSeek-V3: 8)")
	fs.StringVar(&f.old, "old", "", "file of the placement in force; none: one copy of each expert, in order")
	fs.StringVar(&f.oldFormat, "old-format", "auto", "of --old: auto, "+plancli.PlacementFormats)
	fs.StringVar(&f.in.Mode, "mode", plancli.Incremental, "incremental (from the old placement, what pays) or full (the best balance, anew; of what is alike or does not pay its price the old placement stays)")
	fs.IntVar(&f.in.MaxMoves, "max-moves", 0, "of this cycle; 0: as many as pay")
	fs.Float64Var(&f.in.Price, "price", 0, "of a moved expert: by how much a layer's max over mean must fall to pay for it")
	fs.StringVar(&f.placementFile, "placement-file", "", "to write the placement to, [layer][rank] lists of experts")
	fs.IntVar(&f.budgetCurve, "budget-curve", 0, "balance of 0 to so many redundant experts per layer, and with the costs below the best number")
	fs.Int64Var(&f.costs.ExpertBytes, "expert-bytes", 0, "of one expert of one layer")
	fs.Int64Var(&f.costs.BlockBytes, "block-bytes", 0, "of one KV block, all layers")
	fs.IntVar(&f.costs.KVBlocks, "kv-blocks", 0, "of a rank with no redundant expert")
	fs.IntVar(&f.costs.KVDemand, "kv-demand", 0, "KV blocks that a rank's requests want")
	fs.Float64Var(&f.costs.LossPerBlock, "loss-per-block", 0, "share of throughput lost per block short")
	fs.Float64Var(&f.costs.MoESeconds, "moe-seconds", 0, "of a step: its MoE part at even load")
	fs.Float64Var(&f.costs.OtherSeconds, "other-seconds", 0, "of a step: the rest")
	fs.StringVarP(&f.output, "output", "o", "table", plancli.Outputs)
	fs.IntVar(&f.most, "lines", 10, "layers to show in the table; 0: all")
	required(c, "load", "ranks")
	return c
}

func required(c *cobra.Command, names ...string) {
	for _, name := range names {
		if err := c.MarkFlagRequired(name); err != nil {
			panic(err) // a name that is not a flag: a bug of this file
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
		return fmt.Errorf("costs of a redundant expert are given, and no --budget-curve")
	case given > 0 && given < len(budgetFlags):
		return fmt.Errorf("%d of the costs are given; a choice needs all of --%s", given, strings.Join(budgetFlags, ", --"))
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
