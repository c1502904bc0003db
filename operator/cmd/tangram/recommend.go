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
		Short: "Recommend the mode and the numbers of ranks and redundant experts for an SLO",
		Long: `Simulates the requests in both modes on each number of ranks up to --ranks. Recommends the configuration that meets the SLO with the fewest
rank-hours. Among configurations within 1 % of these rank-hours, it prefers fewer redundant experts, then higher attainment.
If no configuration meets the SLO, the command fails, and the table shows the attainment of each.

--expert-load (a file as for tangram balance) or --expert-skew (generated) gives the load of the experts. Without them, --routing gives it.
With an expert load, ExpertParallel mode is simulated with one slot for each expert, and with 1, 2, 4, ... additional slots per rank.
The additional slots hold at most --redundant-experts expert replicas in total. They reduce the memory for the KV cache.
The planner places the experts for the first half of the load's windows. The second half gives the imbalance.
The duration of the experts in a step is that of the busiest rank.`,
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
				err = fmt.Errorf("no configuration with up to %d ranks keeps TTFT %v s and TPOT %v s for a fraction of %v of the requests: increase --ranks or relax the SLO", o.Ranks, slo.TTFT, slo.TPOT, slo.Share)
			}
			return err
		},
	}
	f := c.Flags()
	worldFlags(f, &o, "maximum number of ranks")
	f.Float64Var(&slo.TTFT, "ttft", slo.TTFT, "SLO: maximum time to first token, in seconds; 0: no limit")
	f.Float64Var(&slo.TPOT, "tpot", slo.TPOT, "SLO: maximum mean inter-token latency of a request, in seconds; 0: no limit")
	f.Float64Var(&slo.Share, "attainment", slo.Share, "SLO: minimum fraction of requests within both limits")
	f.StringVar(&o.Experts.File, "expert-load", "", "file with the expert load, as for tangram balance; -: standard input")
	f.StringVar(&o.Experts.Format, "expert-load-format", "auto", "format of --expert-load: auto, "+plancli.LoadFormats)
	f.Float64Var(&o.Experts.Skew, "expert-skew", 0, "skew of a generated expert load instead of a file: sigma of the log-normal popularity of experts; 0: none")
	f.IntVar(&o.Experts.Redundant, "redundant-experts", 0, "maximum number of redundant experts per layer")
	f.StringVarP(&output, "output", "o", "table", "output format: "+plancli.Outputs)
	return c
}

// recommendation is the best of several offers.
type recommendation struct {
	SLO struct {
		TTFT  float64 `json:"ttft"`
		TPOT  float64 `json:"tpot"`
		Share float64 `json:"share"`
	} `json:"slo"`
	Offers []simcli.Offer `json:"offers"`
	Best   int            `json:"best"` // index in Offers; -1: none keeps the SLO
	skewed bool           // an expert load was given
}

// Table prints the offers, and why some cannot serve.
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
