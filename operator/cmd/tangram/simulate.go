package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tangram.dev/operator/internal/plancli"
	"tangram.dev/operator/internal/simcli"
	"tangram.dev/operator/pkg/simplot"
	"tangram.dev/operator/pkg/simulator"
)

// progressEvery so long a simulation tells how far it is.
const progressEvery = 2 * time.Second

func simulateCommand() *cobra.Command {
	o := simcli.Defaults()
	var policies []string
	var samples bool
	var output, svg string
	c := &cobra.Command{
		Use:   "simulate",
		Short: "plays requests against a world that exists in numbers only, under static modes and policies",
		Long: `Plays requests against a world that exists in numbers only: measured kernels say what a step lasts, the planner what a
transition moves. Each --policy is played on its own: a mode (ExpertParallel, TensorParallel, one of --hybrids as "g8,t1"), threshold, rollout, calibrated or hindsight (the best
schedule that a beam search found, knowing the future), all on --ranks ranks; or width, which begins with --ranks and has from --min-ranks to
--max-ranks, as many as hold the SLO, as spec.autoscaling of a MoEDeployment does. With width among the policies steps have at most 2,048 tokens of
each rank in all worlds, else 8,192 of all ranks. Nothing is drawn but by --seed.

TTFT is the time to the first token, TPOT the time for each token after it, "in flight" the requests that are there in the mean over time. A world is
called overloaded if the last answer ends more than a minute, and more than a tenth of the time over which requests come, after the last one came.`,
		Example: "  tangram simulate --trace conversation --policy ExpertParallel,TensorParallel,calibrated\n" +
			"  tangram simulate --rates 300x2,60x20,300x2 --model Qwen3-30B-A3B --truth trtllm\n" +
			"  tangram simulate --trace code --times 3 --model Qwen3-30B-A3B --ranks 4 --policy ExpertParallel,width --min-ranks 3 --max-ranks 8 --ttft 2 --tpot 0.1 --attainment 0.9",
		Args: flagsOnly,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := simulateGiven(c, output, samples); err != nil {
				return err
			}
			o.Policies, o.Sampled = simcli.Joined(policies), samples || svg != ""
			o.Tell = func(text string) { _, _ = fmt.Fprintln(c.ErrOrStderr(), text) }
			w, err := simcli.Load(o, c.InOrStdin())
			if err != nil {
				return err
			}
			out := &simulations{SLO: o.Width.Asked()}
			var played []simplot.Played
			for _, name := range o.Policies {
				told := time.Now()
				progress := func(at float64, left int) {
					if left > 0 && time.Since(told) >= progressEvery {
						told = time.Now()
						_, _ = fmt.Fprintf(c.ErrOrStderr(), "%s: at %.0f s, %d requests to come\n", name, at, left)
					}
				}
				r, err := play(w, name, c.ErrOrStderr(), progress)
				if err != nil {
					return fmt.Errorf("--policy %s: %w", name, err)
				}
				played = append(played, simplot.Played{Policy: name, Result: r})
				out.Policies = append(out.Policies, report(name, &r, w.Overload(r.Makespan), samples))
			}
			if svg != "" {
				if err := drawInto(svg, played); err != nil {
					return fmt.Errorf("--svg: %w", err)
				}
			}
			return plancli.Print(c.OutOrStdout(), output, out, 0)
		},
	}
	f := c.Flags()
	worldFlags(f, &o, "ranks of the world")
	f.StringVar(&o.Prior, "prior", "", "engine whose kernels the policy takes for it at first; another than --truth if not said")
	f.StringSliceVar(&o.Hybrids, "hybrids", nil, "what policies may choose beside modes ExpertParallel and TensorParallel: groups of experts / of attention, numbers of ranks or all, e.g. all/1,1/2")
	f.StringSliceVar(&policies, "policy", []string{"ExpertParallel", "TensorParallel"}, "what to play")
	f.IntVar(&o.Width.Min, "min-ranks", o.Width.Min, "of the policy width: ranks at least")
	f.IntVar(&o.Width.Max, "max-ranks", o.Width.Max, "of the policy width: ranks at most; 0: --ranks")
	f.StringVar(&o.Width.Mode, "mode", o.Width.Mode, "of the policy width, which keeps it: ExpertParallel or TensorParallel; Auto: it is decided with the width")
	f.Float64Var(&o.Width.PodSeconds, "pod-seconds", o.Width.PodSeconds, "of the policy width: from wanting a pod to its rank's being ready")
	f.IntVar(&o.Width.Standby, "standby", o.Width.Standby, "of the policy width: ranks that are kept ready beside those that serve (spec.standbyReplicas)")
	f.Float64Var(&o.Width.SLO.TTFT, "ttft", o.Width.SLO.TTFT, "seconds to the first token that are asked for; 0: any")
	f.Float64Var(&o.Width.SLO.TPOT, "tpot", o.Width.SLO.TPOT, "seconds between tokens, in the mean of an answer, that are asked for; 0: any")
	f.Float64Var(&o.Width.SLO.Share, "attainment", o.Width.SLO.Share, "share of the requests that are to be within both")
	f.StringVarP(&output, "output", "o", "table", plancli.Outputs)
	f.BoolVar(&samples, "samples", false, "with -o json or yaml: the world at every tick too")
	f.StringVar(&svg, "svg", "", "file for a picture of it: requests, latencies, mode and width over time")
	c.AddCommand(recommendCommand(), crossoverCommand())
	return c
}

// simulateGiven checks flags that no world needs.
func simulateGiven(c *cobra.Command, output string, samples bool) error {
	if err := plancli.CheckOutput(output); err != nil {
		return err
	}
	if list, err := c.Flags().GetStringSlice("policy"); err != nil || len(list) == 0 {
		return fmt.Errorf("--policy names none; want ExpertParallel, TensorParallel or others of --help")
	}
	if err := worldGiven(c); err != nil {
		return err
	}
	if list, _ := c.Flags().GetStringSlice("policy"); !slices.Contains(simcli.Joined(list), "width") {
		for _, name := range []string{"min-ranks", "max-ranks", "mode", "pod-seconds", "standby"} {
			if c.Flags().Changed(name) {
				return fmt.Errorf("--%s without width among --policy would change nothing: add width, or leave it out", name)
			}
		}
	}
	if samples && output == "table" {
		return fmt.Errorf("--samples without -o json or yaml: no table has room for them")
	}
	return nil
}

func play(w *simcli.World, name string, errs io.Writer, progress func(at float64, left int)) (simulator.Result, error) {
	if name != "width" {
		return w.Play(name, progress)
	}
	return w.PlayWidth(func(refused string) { _, _ = fmt.Fprintln(errs, "width: not to be had: "+refused) }, progress)
}

func drawInto(path string, played []simplot.Played) error {
	var text bytes.Buffer
	if err := simplot.Draw(&text, played); err != nil {
		return err
	}
	return os.WriteFile(path, text.Bytes(), 0o644) //nolint:gosec // a picture, for whoever made it to show
}

// worldGiven gives an error for flags of requests that would change none.
func worldGiven(c *cobra.Command) error {
	return cmp.Or(without(c, "rates", "prompt", "answer"), without(c, "trace", "format"))
}

// worldFlags say which requests come to what.
func worldFlags(f *pflag.FlagSet, o *simcli.Options, ranks string) {
	f.StringVar(&o.Trace, "trace", "", "conversation, code (both built in), or a file of --format, packed by gzip or not; -: standard input")
	f.StringVar(&o.Format, "format", "", "of the file: mooncake, azure, rollout; from its first line if not said")
	f.StringVar(&o.Rates, "rates", "", "instead of a trace: seconds x requests per second, one part after the other: 300x2,60x20")
	f.IntVar(&o.Rollout, "rollout", o.Rollout, "instead of a trace: so many sequences that are all there at once, with answers of a median of 1,500 tokens and a long tail (log-normal, sigma 1.2, at most 32,768)")
	f.Float64Var(&o.Prompt, "prompt", o.Prompt, "tokens of a prompt in the mean, with --rates")
	f.Float64Var(&o.Output, "answer", o.Output, "tokens of an answer in the mean, with --rates")
	f.IntVar(&o.Times, "times", o.Times, "each request so many times")
	f.IntVar(&o.Concurrency, "concurrency", o.Concurrency, "a closed loop: so many requests at a time, whenever the trace says they come")
	f.StringVar(&o.Model, "model", o.Model, "model: "+strings.Join(simcli.Models(), ", "))
	f.IntVar(&o.Ranks, "ranks", o.Ranks, ranks)
	f.Float64Var(&o.RankGB, "rank-gb", o.RankGB, "memory of a rank, in GB")
	f.StringVar(&o.Truth, "truth", o.Truth, "engine whose kernels are what a step lasts: vllm, sglang, trtllm")
	f.StringVar(&o.Routing, "routing", o.Routing, "how skewed the tokens are over the experts: balanced, power_law_1.01, power_law_1.2")
	f.Float64Var(&o.Noise, "noise", o.Noise, "relative deviation of a step")
	f.Uint64Var(&o.Seed, "seed", o.Seed, "of all that is drawn")
}
