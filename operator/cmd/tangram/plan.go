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
		Use: "plan", Short: "what a transition would move, before it is applied", Args: flagsOnly,
		Long: `What a transition would move, before it is applied. The wanted world is a MoEDeployment (-f) or flags; the world as it is now is the status of
the MoEDeployment (kubectl get moedeployment NAME -o yaml | tangram plan -f - ...) or flags. A flag beats the file. The file may have
other objects in it, and Lists, but one MoEDeployment alone, or the one of --name. In mode Auto the wanted mode is the one that the operator
decided on (status.policy.mode), or has now (status.mode), or starts with (ExpertParallel). With --load experts are placed for that load.`,
		Example: "  tangram plan --geometry Qwen3-30B-A3B --from-ranks 4 --ranks 6\n" +
			"  tangram plan --geometry Qwen3-235B-A22B --from-ranks 8 --ranks 8 --mode TensorParallel\n" +
			"  kubectl get moedeployments -o yaml | tangram plan -f - --name demo --geometry config.json --ranks 6\n" +
			"  tangram plan -f moedeployment.yaml --geometry config.json --load loads.json --redundant-experts 16 --price 0.002",
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c) },
	}
	fs := c.Flags()
	fs.StringVarP(&f.file, "filename", "f", "", "file with a MoEDeployment; - is stdin")
	fs.StringVar(&f.name, "name", "", "of the MoEDeployment, if -f has several: NAME or NAMESPACE/NAME")
	fs.StringVar(&f.geometry, "geometry", "", "folder of the checkpoint, or its config.json (model_type "+strings.Join(geometry.ConfigFamilies(), ", ")+"), or the name of a public model, as Qwen3-30B-A3B")
	fs.Uint32Var(&f.granuleRows, "granule-rows", 0, "rows of a granule; 0: those of -f, else at most 128, and fewer if 8 ranks could not share an expert")
	fs.Uint64Var(&f.pageBytes, "page-bytes", 0, "of the memory that experts lie in; 0: 2 MiB, as GPUs have it (the host backend: 4096)")
	fs.Uint64Var(&f.denseBytes, "dense-bytes", 0, "of the weights outside the routed experts; a geometry does not say it, and 0 leaves them out")
	fs.IntVar(&f.in.From.Ranks, "from-ranks", 0, "ranks of the world as it is; 0: none yet")
	fs.StringVar(&f.in.From.Mode, "from-mode", layout.Expert.String(), "mode of the world as it is")
	fs.IntVar(&f.in.To.Ranks, "ranks", 0, "wanted ranks")
	fs.StringVar(&f.in.To.Mode, "mode", layout.Expert.String(), "wanted mode: ExpertParallel, TensorParallel, or Hybrid with the layers of -f")
	fs.IntVar(&f.podSize, "ranks-per-pod", 1, "ranks of a pod")
	fs.Uint32Var(&f.in.SpareBanks, "spare-banks", 2, "layers that one flip can rewrite; each flip is a pause, and a switch of all layers takes so many fewer of them")
	fs.StringVar(&f.loads, "load", "", "file of loads to place experts for; - is stdin")
	fs.StringVar(&f.format, "format", "auto", "of --load: auto, "+plancli.LoadFormats)
	fs.IntVar(&f.every, "every", 1, "entries of --load that make one window")
	fs.IntVar(&f.firstLayer, "first-layer", 0, "first layer of --load with routed experts")
	fs.StringVar(&f.demand, "demand", plancli.Forecast, "load to plan for: forecast, last, sum")
	fs.IntVar(&f.in.Redundant, "redundant-experts", 0, "slots per layer beyond one for each expert; with --load")
	fs.IntVar(&f.in.MaxMoves, "max-moves", 0, "of experts, with --load; 0: as many as pay")
	fs.Float64Var(&f.in.Price, "price", 0, "of a moved expert, with --load: by how much a layer's max over mean must fall to pay for it")
	fs.StringVar(&f.old, "old", "", "file of the placement in force; none: as a world starts")
	fs.StringVar(&f.oldFormat, "old-format", "auto", "of --old: auto, "+plancli.PlacementFormats)
	fs.StringVarP(&f.output, "output", "o", "table", plancli.Outputs)
	fs.IntVar(&f.most, "lines", 20, "transfers and layers to show in the table; 0: all")
	required(c, "geometry")
	return c
}

// deployment fills what no flag said.
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
			_, _ = fmt.Fprintf(c.ErrOrStderr(), "%s: mode Auto, planned for %s, %s; --mode plans for another\n", f.file, mode, why)
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
	if f.loads != "" { // without a load the operator places no redundant expert either
		set("redundant-experts", func() {
			if r := d.Spec.Experts.Redundant; r != nil {
				f.in.Redundant = int(max(r.Count, r.Max))
			}
		})
	}
	return nil
}

// decidedMode is the mode that a world is to have, and in mode Auto where that comes from.
func decidedMode(d *api.MoEDeployment) (mode api.Mode, why string) {
	switch {
	case !d.IsAuto():
		return d.SpecMode(), ""
	case d.Status.Policy != nil && d.Status.Policy.Mode != "":
		return d.Status.Policy.Mode, "which the operator decided on (status.policy.mode)"
	case d.Status.Mode != "":
		return d.Status.Mode, "which it has now (status.mode)"
	}
	return api.ModeExpert, "which it starts with"
}

// given flags must be of use.
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
		return fmt.Errorf("no wanted world: give -f or --ranks")
	}
	if f.in.From.Ranks < 0 || f.podSize < 1 {
		return fmt.Errorf("--from-ranks %d, --ranks-per-pod %d; want at least 0 and 1", f.in.From.Ranks, f.podSize)
	}
	if f.in.From.Ranks == 0 && c.Flags().Changed("from-mode") {
		return fmt.Errorf("--from-mode %s, and no world that has it: give --from-ranks, or -f with a status", f.in.From.Mode)
	}
	if _, err := layout.ParseMode(f.in.From.Mode); err != nil {
		return fmt.Errorf("--from-mode: %w", err)
	}
	var err error
	if f.in.Geometry, err = plancli.Geometry(f.geometry, f.granuleRows, f.pageBytes, f.denseBytes); err != nil {
		return err
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
