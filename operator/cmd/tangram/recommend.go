package main

import (
	"encoding/json"
	"fmt"
	"io"
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
	var asJSON bool
	c := &cobra.Command{
		Use:   "recommend",
		Short: "the mode, the number of ranks and of redundant experts that keep an SLO at the least rank-hours",
		Long: `Plays the requests in both modes on every number of ranks up to --ranks, and names the one that keeps the SLO for its share of
requests at the least rank-hours; of those within 1 % of these, the one with the fewest redundant experts, then the one that keeps it for most. If none does that is an error, and the table says how close
they came.

How the load lies on the experts is --expert-load (a file as of tangram balance) or --expert-skew (drawn); without either it is as --routing has it. With it
mode Expert is played with one slot for each expert, and with 1, 2, 4, ... more on each rank, up to --redundant-experts in all: placed by the planner that rebalances worlds, for the first half
of the windows, and judged by the second; the busiest rank's experts take as long as if all ranks had as much, and the copies take their memory from KV.`,
		Example: "  tangram simulate recommend --trace code --times 20 --model Qwen3-30B-A3B --ttft 1 --tpot 0.05 --attainment 0.95",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
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
			if asJSON {
				e := json.NewEncoder(c.OutOrStdout())
				e.SetIndent("", "  ")
				err = e.Encode(struct {
					SLO    telemetry.SLO
					Offers []simcli.Offer
					Best   int // of Offers; -1: none keeps the SLO
				}{slo, offers, best})
			} else {
				err = printOffers(c.OutOrStdout(), offers, best, skewed)
			}
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
	f.BoolVar(&asJSON, "json", false, "JSON instead of a table")
	return c
}

func printOffers(out io.Writer, offers []simcli.Offer, best int, skewed bool) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	head := []string{"", "ranks"}
	if skewed {
		head = append(head, "redundant", "imbalance")
	}
	_, _ = fmt.Fprintln(t, strings.Join(append(head, "attained", "rank-hours", "TTFT p50 s", "p99 s", "TPOT p50 ms", "p99 ms", ""), "\t"))
	for i, f := range offers {
		_, _ = fmt.Fprintf(t, "%s\t%d\t", f.Mode, f.Ranks)
		switch {
		case skewed && f.Imbalance > 0:
			_, _ = fmt.Fprintf(t, "%d\t%.3f\t", f.Redundant, f.Imbalance)
		case skewed:
			_, _ = fmt.Fprint(t, "\t\t")
		}
		if f.Refused != "" {
			_, _ = fmt.Fprint(t, "-\t\t\t\t\t\t\n")
			continue
		}
		mark := ""
		if i == best {
			mark = " <- recommended"
		}
		_, _ = fmt.Fprintf(t, "%.4f\t%.2f\t%.3f\t%.3f\t%.2f\t%.2f\t%s\n", f.Attained, f.RankHours, f.FirstToken.P50, f.FirstToken.P99, 1e3*f.PerToken.P50,
			1e3*f.PerToken.P99, mark)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("table: %w", err)
	}
	for _, f := range offers {
		if f.Refused == "" {
			continue
		}
		if _, err := fmt.Fprintf(out, "%s on %d ranks, %d redundant experts: %s\n", f.Mode, f.Ranks, f.Redundant, f.Refused); err != nil {
			return err
		}
	}
	return nil
}
