package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"tangram.dev/operator/internal/plancli"
	"tangram.dev/operator/internal/simcli"
	"tangram.dev/operator/pkg/telemetry"
)

func recommendCommand() *cobra.Command {
	o := simcli.Defaults()
	slo := telemetry.SLO{TTFT: 1, TPOT: .05, Share: .95}
	var output string
	c := &cobra.Command{
		Use:   "recommend",
		Short: "the mode, the number of ranks and of redundant experts that keep an SLO at the least rank-hours",
		Long: `Plays the requests in both modes on every number of ranks up to --ranks, and names the one that keeps the SLO for its share of
requests at the least rank-hours; of those within 1 % of these, the one with the fewest redundant experts, then the one that keeps it for most. If none does that is an error, and the table says how close
they came.

How the load lies on the experts is --expert-load (a file as of tangram balance) or --expert-skew (drawn); without either it is as --routing has it. With it
mode ExpertParallel is played with one slot for each expert, and with 1, 2, 4, ... more on each rank, up to --redundant-experts in all: placed by the planner that rebalances worlds, for the first half
of the windows, and judged by the second; the busiest rank's experts take as long as if all ranks had as much, and the copies take their memory from KV.`,
		Example: "  tangram simulate recommend --trace code --times 20 --model Qwen3-30B-A3B --ttft 1 --tpot 0.05 --attainment 0.95",
		Args:    flagsOnly,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := plancli.CheckOutput(output); err != nil {
				return err
			}
			if err := worldGiven(c); err != nil {
				return err
			}
			o.Tell = func(text string) { _, _ = fmt.Fprintln(c.ErrOrStderr(), text) }
			skewed := o.Experts.File != "" || o.Experts.Skew != 0
			if skewed && !c.Flags().Changed("routing") {
				o.Routing = "balanced"
			}
			offers, best, err := simcli.Recommend(o, slo, c.InOrStdin(), func(mode string, ranks, redundant int) {
				_, _ = fmt.Fprintf(c.ErrOrStderr(), "%s on %d ranks", mode, ranks)
				if redundant > 0 {
					_, _ = fmt.Fprintf(c.ErrOrStderr(), ", %d redundant experts", redundant)
				}
				_, _ = fmt.Fprintln(c.ErrOrStderr())
			})
			if err != nil {
				return err
			}
			out := &recommendation{Offers: offers, Best: best, skewed: skewed}
			out.SLO.TTFT, out.SLO.TPOT, out.SLO.Share = slo.TTFT, slo.TPOT, slo.Share
			err = plancli.Print(c.OutOrStdout(), output, out, 0)
			if err == nil && best < 0 {
				err = fmt.Errorf("nothing up to %d ranks keeps TTFT %v s and TPOT %v s for %v of the requests: more ranks, or another SLO", o.Ranks, slo.TTFT, slo.TPOT, slo.Share)
			}
			return err
		},
	}
	f := c.Flags()
	worldFlags(f, &o, "ranks at most")
	f.Float64Var(&slo.TTFT, "ttft", slo.TTFT, "seconds to the first token; 0: any")
	f.Float64Var(&slo.TPOT, "tpot", slo.TPOT, "seconds between tokens, in the mean of an answer; 0: any")
	f.Float64Var(&slo.Share, "attainment", slo.Share, "share of the requests that are to be within both")
	f.StringVar(&o.Experts.File, "expert-load", "", "file of what the experts were asked for, as tangram balance reads it; - is stdin")
	f.StringVar(&o.Experts.Format, "expert-load-format", "auto", "of --expert-load: auto, "+plancli.LoadFormats)
	f.Float64Var(&o.Experts.Skew, "expert-skew", 0, "instead of a file: how far the experts' popularities are apart (sigma of their logarithms; drawn by --seed)")
	f.IntVar(&o.Experts.Redundant, "redundant-experts", 0, "slots of each layer beyond one for each expert, at most")
	f.StringVarP(&output, "output", "o", "table", plancli.Outputs)
	return c
}

// recommendation among offers.
type recommendation struct {
	SLO struct {
		TTFT  float64 `json:"ttft"`
		TPOT  float64 `json:"tpot"`
		Share float64 `json:"share"`
	} `json:"slo"`
	Offers []simcli.Offer `json:"offers"`
	Best   int            `json:"best"` // of Offers; -1: none keeps the SLO
	skewed bool           // the load on the experts was said
}

// Table of the offers, and why some of them are none.
func (r *recommendation) Table(w *tabwriter.Writer, _ int) {
	head := []string{"mode", "ranks"}
	if r.skewed {
		head = append(head, "redundant", "imbalance")
	}
	_, _ = fmt.Fprintln(w, strings.Join(append(head, "attained", "rank-hours", "TTFT p50 s", "TTFT p99 s", "TPOT p50 ms", "TPOT p99 ms", ""), "\t"))
	for i, f := range r.Offers {
		_, _ = fmt.Fprintf(w, "%s\t%d\t", f.Mode, f.Ranks)
		switch {
		case r.skewed && f.Imbalance > 0:
			_, _ = fmt.Fprintf(w, "%d\t%.3f\t", f.Redundant, f.Imbalance)
		case r.skewed:
			_, _ = fmt.Fprint(w, "\t\t")
		}
		if f.Refused != "" {
			_, _ = fmt.Fprint(w, "-\t\t\t\t\t\t\n")
			continue
		}
		mark := ""
		if i == r.Best {
			mark = " <- recommended"
		}
		_, _ = fmt.Fprintf(w, "%.4f\t%.2f\t%.3f\t%.3f\t%.2f\t%.2f\t%s\n", f.Attained, f.RankHours, f.FirstToken.P50, f.FirstToken.P99, 1e3*f.PerToken.P50,
			1e3*f.PerToken.P99, mark)
	}
	_ = w.Flush() // the lines below are no columns
	for _, f := range r.Offers {
		if f.Refused != "" {
			_, _ = fmt.Fprintf(w, "%s on %d ranks, %d redundant experts: %s\n", f.Mode, f.Ranks, f.Redundant, f.Refused)
		}
	}
}
