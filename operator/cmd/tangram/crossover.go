package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"tangram.dev/operator/internal/crossplot"
	"tangram.dev/operator/internal/plancli"
	"tangram.dev/operator/internal/simcli"
)

func crossoverCommand() *cobra.Command {
	o := simcli.Defaults()
	engines, routings, contexts := []string{"vllm", "trtllm", "sglang"}, []string{o.Routing}, []int{2048}
	var output, svg string
	var steps bool
	c := &cobra.Command{
		Use:   "crossover",
		Short: "Print the number of requests at which ExpertParallel mode becomes faster than TensorParallel mode",
		Long: `Computes the duration of a decode step of 1 to 512 requests in both modes from measured kernels, and prints where the modes cross.
Use the result as the threshold of a policy for that engine, model, number of ranks, routing and context. No request is simulated.`,
		Example: "  tangram simulate crossover --model Qwen3-30B-A3B --ranks 4 --truth vllm,sglang --routing balanced,power_law_1.2",
		Args:    flagsOnly,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := plancli.CheckOutput(output); err != nil {
				return err
			}
			all, err := simcli.Crossovers(o.Model, o.Ranks, engines, routings, contexts)
			if err != nil {
				return err
			}
			if svg != "" {
				var text bytes.Buffer
				if err = crossplot.Draw(&text, fmt.Sprintf("%s on %d ranks", o.Model, o.Ranks), all); err == nil {
					err = os.WriteFile(svg, text.Bytes(), 0o644) //nolint:gosec // a picture, for whoever made it to show
				}
				if err != nil {
					return fmt.Errorf("--svg: %w", err)
				}
			}
			return plancli.Print(c.OutOrStdout(), output, &crossovers{all, steps}, 0)
		},
	}
	f := c.Flags()
	f.StringVar(&o.Model, "model", o.Model, "model: "+strings.Join(simcli.Models(), ", "))
	f.IntVar(&o.Ranks, "ranks", o.Ranks, "number of ranks")
	f.StringSliceVar(&engines, "truth", engines, "engines whose measured kernels are used: vllm, sglang, trtllm")
	f.StringSliceVar(&routings, "routing", routings, "distributions of tokens over experts: balanced, power_law_1.01, power_law_1.2")
	f.IntSliceVar(&contexts, "context", contexts, "context lengths of the requests, in tokens")
	f.BoolVar(&steps, "steps", false, "print a table of the step durations in both modes and of their parts")
	f.StringVarP(&output, "output", "o", "table", "output format: "+plancli.Outputs)
	f.StringVar(&svg, "svg", "", "file for an SVG plot of the ratio of step durations, ExpertParallel to TensorParallel, by number of requests; empty: no plot")
	return c
}

// crossovers to print; steps: with a table for each.
type crossovers struct {
	Crossovers []simcli.Crossover `json:"crossovers"`
	steps      bool
}

// Table prints the crossovers.
func (all *crossovers) Table(w *tabwriter.Writer, _ int) {
	for _, c := range all.Crossovers {
		_, _ = fmt.Fprintf(w, "%s, %s, context of %d tokens: %s\n", c.Engine, c.Routing, c.Context, c.Words())
	}
	if !all.steps {
		return
	}
	for _, c := range all.Crossovers {
		_ = w.Flush() // each table has its own columns
		_, _ = fmt.Fprintf(w, "%s, %s, %d\tms: step\t\tdense\t\tattention\t\texperts\t\tcollectives\t\tratio\ttokens/s\t\t\n", c.Engine, c.Routing, c.Context)
		_, _ = fmt.Fprintln(w, "requests"+strings.Repeat("\tExpert\tTensor", 5)+"\t\tExpert\tTensor\t")
		for _, at := range c.Points {
			e, x := at.Expert, at.Tensor
			_, _ = fmt.Fprintf(w, "%d", at.Requests)
			for _, seconds := range []float64{e.Sum(), x.Sum(), e.Dense, x.Dense, e.Attention, x.Attention, e.Experts, x.Experts, e.Around, x.Around} {
				_, _ = fmt.Fprintf(w, "\t%.2f", 1e3*seconds)
			}
			_, _ = fmt.Fprintf(w, "\t%.3f\t%.0f\t%.0f\t\n", e.Sum()/x.Sum(), float64(at.Requests)/e.Sum(), float64(at.Requests)/x.Sum())
		}
	}
}
