package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"tangram.dev/operator/internal/simcli"
	"tangram.dev/operator/pkg/simulator"
)

func simulateCommand() *cobra.Command {
	o := simcli.Defaults()
	var policies []string
	var asJSON, samples bool
	c := &cobra.Command{
		Use:   "simulate",
		Short: "plays requests against a world that exists in numbers only, under static modes and policies",
		Long: `Plays requests against a world that exists in numbers only: measured kernels say what a step lasts, the planner what a
transition moves. Each --policy is played on its own: a mode (Expert, Tensor), threshold, rollout, calibrated or hindsight (the best
schedule that a beam search found, knowing the future). Nothing is drawn but by --seed.`,
		Example: "  tangram simulate --trace conversation --policy Expert,Tensor,calibrated\n" +
			"  tangram simulate --rates 300x2,60x20,300x2 --model Qwen3-30B-A3B --truth trtllm",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			w, err := simcli.Load(o, c.InOrStdin())
			if err != nil {
				return err
			}
			var rows []row
			for _, name := range policies {
				progress := func(at float64, left int) {
					_, _ = fmt.Fprintf(c.ErrOrStderr(), "%s: at %.0f s, %d requests to come\n", name, at, left)
				}
				r, err := w.Play(name, progress)
				if err != nil {
					return fmt.Errorf("--policy %s: %w", name, err)
				}
				if !samples {
					r.Samples = nil
				}
				rows = append(rows, row{name, r})
			}
			if asJSON {
				e := json.NewEncoder(c.OutOrStdout())
				e.SetIndent("", "  ")
				return e.Encode(rows)
			}
			return printRows(c.OutOrStdout(), rows)
		},
	}
	f := c.Flags()
	f.StringVar(&o.Trace, "trace", "", "conversation, code (both built in), or a file of --format")
	f.StringVar(&o.Format, "format", "", "of the file: mooncake, azure, rollout; from its name if not said")
	f.StringVar(&o.Rates, "rates", "", "instead of a trace: seconds x requests per second, one part after the other: 300x2,60x20")
	f.Float64Var(&o.Prompt, "prompt", o.Prompt, "tokens of a prompt in the mean, with --rates")
	f.Float64Var(&o.Output, "output", o.Output, "tokens of an answer in the mean, with --rates")
	f.IntVar(&o.Times, "times", o.Times, "each request so many times")
	f.IntVar(&o.Concurrency, "concurrency", o.Concurrency, "a closed loop: so many requests at a time, whenever the trace says they come")
	f.StringVar(&o.Model, "model", o.Model, "model with kernel tables")
	f.IntVar(&o.Ranks, "ranks", o.Ranks, "ranks of the world")
	f.Float64Var(&o.RankGB, "rank-gb", o.RankGB, "memory of a rank, in GB")
	f.StringVar(&o.Truth, "truth", o.Truth, "engine whose kernels are what a step lasts: vllm, sglang, trtllm")
	f.StringVar(&o.Prior, "prior", "", "engine whose kernels the policy takes for it at first; another than --truth if not said")
	f.StringVar(&o.Routing, "routing", o.Routing, "how skewed the tokens are over the experts: balanced, power_law_1.01, power_law_1.2")
	f.Float64Var(&o.Noise, "noise", o.Noise, "relative deviation of a step")
	f.Uint64Var(&o.Seed, "seed", o.Seed, "of all that is drawn")
	f.StringSliceVar(&policies, "policy", []string{"Expert", "Tensor"}, "what to play")
	f.BoolVar(&asJSON, "json", false, "JSON instead of a table")
	f.BoolVar(&samples, "samples", false, "with --json: the world at every tick too")
	return c
}

// row of the table.
type row struct {
	Policy string
	simulator.Result
}

func printRows(out io.Writer, rows []row) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(t, strings.Join([]string{"", "requests", "latency mean s", "TTFT p50 s", "p99 s", "TPOT p50 ms", "p99 ms", "tokens/s", "in world", "makespan s", "switches", "stalled s", ""}, "\t"))
	for _, r := range rows {
		_, _ = fmt.Fprintf(t, "%s\t%d\t%.3f\t%.3f\t%.3f\t%.2f\t%.2f\t%.0f\t%.1f\t%.1f\t%d\t%.2f\t\n", r.Policy, r.Requests, r.LatencySum/float64(max(r.Requests, 1)),
			r.FirstToken.P50, r.FirstToken.P99, 1e3*r.PerToken.P50, 1e3*r.PerToken.P99, float64(r.OutputTokens)/r.Makespan, r.Occupancy, r.Makespan, len(r.Switches), r.Stalled)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("table: %w", err)
	}
	for _, r := range rows {
		for _, s := range r.Switches {
			if _, err := fmt.Fprintf(out, "%s at %.1f s: %s -> %s: %s\n", r.Policy, s.At, s.From, s.To, s.Why.Text); err != nil {
				return err
			}
		}
	}
	return nil
}
