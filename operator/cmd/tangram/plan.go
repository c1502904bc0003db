package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"tangram.dev/operator/internal/plancli"
	"tangram.dev/operator/internal/ranges"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/load"

	api "tangram.dev/api/v1alpha2"
)

type planFlags struct {
	in                               plancli.PlanInput
	file, name, geometry             string
	loads, format, demand            string
	old, oldFormat, output           string
	granuleRows                      uint32
	pageBytes, denseBytes            uint64
	every, firstLayer, most, podSize int
}

func planCommand() *cobra.Command {
	var f planFlags
	c := &cobra.Command{
		Use: "plan", Short: "Print the plan of a transition", Args: flagsOnly,
		Long: `Prints the plan of a transition without applying it: the flips, the bytes that each rank receives, and the memory that each rank needs.

The target comes from a MoEDeployment (-f) or from flags. The active layout comes from the status of the MoEDeployment
(kubectl get moedeployment NAME -o yaml | tangram plan -f - ...) or from flags. Flags override the file.
The file can contain other objects and Lists. If it contains several MoEDeployments, choose one with --name.

In mode Auto, the target mode is status.policy.mode, the decision of the operator. If that is empty, it is the active mode, status.mode.
A world without a status starts in ExpertParallel mode. With --load, experts are placed for that load.`,
		Example: "  tangram plan --geometry Qwen3-30B-A3B --from-ranks 4 --ranks 6\n" +
			"  tangram plan --geometry Qwen3-235B-A22B --from-ranks 8 --ranks 8 --mode TensorParallel\n" +
			"  kubectl get moedeployments -o yaml | tangram plan -f - --name demo --geometry config.json --ranks 6\n" +
			"  tangram plan -f moedeployment.yaml --geometry config.json --load loads.json --redundant-experts 16 --price 0.002",
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c) },
	}
	fs := c.Flags()
	fs.StringVarP(&f.file, "filename", "f", "", "file with a MoEDeployment; -: standard input")
	fs.StringVar(&f.name, "name", "", "name of the MoEDeployment, if -f contains several: NAME or NAMESPACE/NAME")
	fs.StringVar(&f.geometry, "geometry", "", "folder of the checkpoint, its config.json (model_type "+strings.Join(geometry.ConfigFamilies(), ", ")+"), or the name of a public model, e.g. Qwen3-30B-A3B")
	fs.Uint32Var(&f.granuleRows, "granule-rows", 0, "rows per granule; 0: the value of -f, else 128, or fewer so that 8 ranks can share an expert")
	fs.Uint64Var(&f.pageBytes, "page-bytes", 0, "page size of expert memory, in bytes; 0: 2 MiB, the page size of GPUs (host backend: 4096)")
	fs.Uint64Var(&f.denseBytes, "dense-bytes", 0, "size of the weights outside the routed experts, in bytes; 0: not counted, because config.json does not contain it")
	fs.IntVar(&f.in.From.Ranks, "from-ranks", 0, "number of ranks of the active layout; 0: the world does not exist yet")
	fs.StringVar(&f.in.From.Mode, "from-mode", layout.Expert.String(), "mode of the active layout")
	fs.IntVar(&f.in.To.Ranks, "ranks", 0, "target number of ranks")
	fs.StringVar(&f.in.To.Mode, "mode", layout.Expert.String(), "target mode: ExpertParallel, TensorParallel, or Hybrid with the layers of -f")
	fs.IntVar(&f.podSize, "ranks-per-pod", 1, "number of ranks per pod")
	fs.Uint32Var(&f.in.SpareBanks, "spare-banks", 2, "number of layers that one flip can change; more spare banks need more memory and fewer flips, each of which is a pause")
	fs.StringVar(&f.loads, "load", "", "file with the expert load to place experts for; -: standard input")
	fs.StringVar(&f.format, "format", "auto", "format of --load: auto, "+plancli.LoadFormats)
	fs.IntVar(&f.every, "every", 1, "number of entries of --load per window")
	fs.IntVar(&f.firstLayer, "first-layer", 0, "index of the first layer of --load with routed experts")
	fs.StringVar(&f.demand, "demand", plancli.Forecast, "load to plan for: forecast (of the next window), last (window) or sum (of all windows)")
	fs.IntVar(&f.in.Redundant, "redundant-experts", 0, "number of redundant experts per layer; needs --load")
	fs.IntVar(&f.in.MaxMoves, "max-moves", 0, "maximum number of experts to move; 0: every move that is worth its price; needs --load")
	fs.Float64Var(&f.in.Price, "price", 0, "minimum improvement of a layer's max/mean load per moved expert; needs --load")
	fs.StringVar(&f.old, "old", "", "file with the active placement; empty: the initial placement of a world")
	fs.StringVar(&f.oldFormat, "old-format", "auto", "format of --old: auto, "+plancli.PlacementFormats)
	fs.StringVarP(&f.output, "output", "o", "table", "output format: "+plancli.Outputs)
	fs.IntVar(&f.most, "lines", 20, "maximum number of transfers and layers in the table; 0: all")
	required(c, "geometry")
	return c
}

// deployment fills fields that no flag set.
func (f *planFlags) deployment(c *cobra.Command) error {
	d, err := plancli.Deployment(f.file, f.name, c.InOrStdin())
	if err != nil {
		return err
	}
	set := func(name string, to func()) {
		if !c.Flags().Changed(name) {
			to()
		}
	}
	set("ranks", func() { f.in.To.Ranks = int(d.DesiredReplicas()) * int(d.Spec.RanksPerPod) })
	set("mode", func() {
		mode, why := decidedMode(d)
		if why != "" {
			_, _ = fmt.Fprintf(c.ErrOrStderr(), "%s: mode is Auto: the plan is for %s, %s; use --mode to plan for another mode\n", f.file, mode, why)
		}
		f.in.To.Mode = string(mode)
	})
	if f.in.To.Mode == layout.Hybrid.String() {
		f.in.To.Layout = ranges.OfSpec(d.DesiredLayers())
	}
	set("ranks-per-pod", func() { f.podSize = int(d.Spec.RanksPerPod) })
	set("granule-rows", func() { f.granuleRows = uint32(d.Spec.Tuning.GranuleRows) })
	set("spare-banks", func() { f.in.SpareBanks = uint32(d.Spec.Tuning.SpareBanks) })
	set("from-ranks", func() { f.in.From.Ranks = int(d.Status.Ranks) })
	if d.Status.Mode != "" {
		set("from-mode", func() { f.in.From.Mode = string(d.Status.Mode) })
	}
	if f.in.From.Mode == layout.Hybrid.String() {
		f.in.From.Layout = ranges.OfStatus(d.Status.Layers)
	}
	if f.loads != "" { // without a load, the operator places no redundant experts either
		set("redundant-experts", func() {
			if r := d.Spec.Experts.Redundant; r != nil {
				f.in.Redundant = int(max(r.Count, r.Max))
			}
		})
	}
	return nil
}

// decidedMode returns the target mode of a world, and its origin in mode Auto.
func decidedMode(d *api.MoEDeployment) (mode api.Mode, why string) {
	switch {
	case !d.IsAuto():
		return d.SpecMode(), ""
	case d.Status.Policy != nil && d.Status.Policy.Mode != "":
		return d.Status.Policy.Mode, "the decision of the operator (status.policy.mode)"
	case d.Status.Mode != "":
		return d.Status.Mode, "the active mode (status.mode)"
	}
	return api.ModeExpert, "the mode of a new world"
}

// given rejects flags without effect.
func (f *planFlags) given(c *cobra.Command) error {
	return cmp.Or(
		without(c, "filename", "name"),
		without(c, "load", "format", "every", "first-layer", "demand", "redundant-experts", "max-moves", "price"),
		without(c, "old", "old-format"),
		onceStdin(c, "filename", "load", "old"))
}

func (f *planFlags) run(c *cobra.Command) error {
	if err := plancli.CheckOutput(f.output); err != nil {
		return err
	}
	if err := f.given(c); err != nil {
		return err
	}
	if f.file != "" {
		if err := f.deployment(c); err != nil {
			return err
		}
	}
	if f.file == "" && !c.Flags().Changed("ranks") {
		return fmt.Errorf("no target: set -f or --ranks")
	}
	if f.in.From.Ranks < 0 || f.podSize < 1 {
		return fmt.Errorf("--from-ranks is %d and --ranks-per-pod is %d; want at least 0 and at least 1", f.in.From.Ranks, f.podSize)
	}
	if f.in.From.Ranks == 0 && c.Flags().Changed("from-mode") {
		return fmt.Errorf("--from-mode %s has no effect without an active layout: set --from-ranks, or -f with a status", f.in.From.Mode)
	}
	if _, err := layout.ParseMode(f.in.From.Mode); err != nil {
		return fmt.Errorf("--from-mode: %w", err)
	}
	var err error
	if f.in.Geometry, err = plancli.Geometry(f.geometry, f.granuleRows, f.pageBytes, f.denseBytes); err != nil {
		return fmt.Errorf("--geometry: %w", err)
	}
	said := ""
	if f.loads != "" {
		w := windows{f.every, f.firstLayer}
		var lies load.Placement
		if f.in.Loads, lies, said, err = w.read(f.loads, f.format, f.demand, c.InOrStdin(), c.ErrOrStderr()); err != nil {
			return err
		}
		f.in.Old = lies
	}
	if f.old != "" {
		o := load.Options{Layers: f.in.Geometry.MoELayers(), Experts: int(f.in.Geometry.Proto.Experts)}
		if f.in.Old, err = plancli.ReadPlacement(f.old, f.oldFormat, f.in.From.Ranks, o, c.InOrStdin()); err != nil {
			return err
		}
	}
	f.in.RanksPerPod = f.podSize
	if f.in.From.Ranks == 0 {
		f.in.From.Mode, f.in.From.Layout = "", nil
	}
	report, err := plancli.Plan(f.in)
	if err != nil {
		return err
	}
	if report.Balance != nil {
		report.Balance.Demand = said
	}
	return plancli.Print(c.OutOrStdout(), f.output, report, f.most)
}
