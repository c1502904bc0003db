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

// progressEvery is the interval of progress messages.
const progressEvery = 2 * time.Second

func simulateCommand() *cobra.Command {
	o := simcli.Defaults()
	var policies []string
	var samples bool
	var output, svg string
	c := &cobra.Command{
		Use:   "simulate",
		Short: "Simulate requests on a world, in static modes and under policies",
		Long: `Simulates requests on a world. Measured kernels give the duration of each step, the planner gives the data that each transition transfers.
All random numbers depend only on --seed.

Each --policy is simulated separately:
  ExpertParallel, TensorParallel  this mode on --ranks ranks, without switches
  gG,tT                           this hybrid layout on --ranks ranks; --hybrids must contain it, e.g. g8,t1
  threshold                       switches to ExpertParallel at 256 requests, and back at 205 (published thresholds)
  rollout                         like threshold without hysteresis, for batches in which all requests arrive together
  calibrated                      switches the mode by measured step durations, as a MoEDeployment in mode Auto does
  hindsight                       best schedule found by a beam search that knows all future requests
  width                           starts with --ranks ranks and changes the number of ranks between --min-ranks and --max-ranks
                                  to meet the SLO, as spec.autoscaling of a MoEDeployment does

If the policies include width, a step has at most 2,048 tokens per rank. Otherwise it has at most 8,192 tokens in total.

TTFT is the time to first token. TPOT is the mean inter-token latency of a request. "in flight" is the mean number of requests in the world.
A world is overloaded if requests arrive faster than it can serve them: the last request completes late after the last arrival.
Late means more than one minute and more than one tenth of the time in which requests arrive.`,
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
						_, _ = fmt.Fprintf(c.ErrOrStderr(), "%s: at %.0f s, %d requests left\n", name, at, left)
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
	worldFlags(f, &o, "number of ranks; with policy width, the initial number")
	f.StringVar(&o.Prior, "prior", "", "engine whose measured kernels are the initial estimate of the policies; empty: a different engine than --truth")
	f.StringSliceVar(&o.Hybrids, "hybrids", nil, "hybrid layouts that policies can choose, as EXPERT_GROUP/ATTENTION_GROUP; each group is a number of ranks or all, e.g. all/1,1/2")
	f.StringSliceVar(&policies, "policy", []string{"ExpertParallel", "TensorParallel"}, "policies to simulate")
	f.IntVar(&o.Width.Min, "min-ranks", o.Width.Min, "minimum number of ranks for policy width")
	f.IntVar(&o.Width.Max, "max-ranks", o.Width.Max, "maximum number of ranks for policy width; 0: the value of --ranks")
	f.StringVar(&o.Width.Mode, "mode", o.Width.Mode, "mode for policy width: ExpertParallel, TensorParallel, or Auto to choose the mode together with the number of ranks")
	f.Float64Var(&o.Width.PodSeconds, "pod-seconds", o.Width.PodSeconds, "for policy width: time from the request for a pod until its rank is ready, in seconds")
	f.IntVar(&o.Width.Standby, "standby", o.Width.Standby, "number of standby ranks for policy width (spec.standbyReplicas)")
	f.Float64Var(&o.Width.SLO.TTFT, "ttft", o.Width.SLO.TTFT, "SLO: maximum time to first token, in seconds; 0: no limit")
	f.Float64Var(&o.Width.SLO.TPOT, "tpot", o.Width.SLO.TPOT, "SLO: maximum mean inter-token latency of a request, in seconds; 0: no limit")
	f.Float64Var(&o.Width.SLO.Share, "attainment", o.Width.SLO.Share, "SLO: minimum fraction of requests within both limits")
	f.StringVarP(&output, "output", "o", "table", "output format: "+plancli.Outputs)
	f.BoolVar(&samples, "samples", false, "include the state of the world at each sampling time; needs -o json or yaml")
	f.StringVar(&svg, "svg", "", "file for an SVG plot of requests, latencies, mode and number of ranks over time; empty: no plot")
	c.AddCommand(recommendCommand(), crossoverCommand())
	return c
}

// simulateGiven checks flags that do not concern the world.
func simulateGiven(c *cobra.Command, output string, samples bool) error {
	if err := plancli.CheckOutput(output); err != nil {
		return err
	}
	if list, err := c.Flags().GetStringSlice("policy"); err != nil || len(list) == 0 {
		return fmt.Errorf("--policy is empty; want ExpertParallel, TensorParallel or another policy of --help")
	}
	if err := worldGiven(c); err != nil {
		return err
	}
	if list, _ := c.Flags().GetStringSlice("policy"); !slices.Contains(simcli.Joined(list), "width") {
		for _, name := range []string{"min-ranks", "max-ranks", "mode", "pod-seconds", "standby"} {
			if c.Flags().Changed(name) {
				return fmt.Errorf("found --%s without policy width: add width to --policy or remove --%s", name, name)
			}
		}
	}
	if samples && output == "table" {
		return fmt.Errorf("found --samples with -o table, which cannot show samples: use -o json or yaml, or remove --samples")
	}
	return nil
}

func play(w *simcli.World, name string, errs io.Writer, progress func(at float64, left int)) (simulator.Result, error) {
	if name != "width" {
		return w.Play(name, progress)
	}
	return w.PlayWidth(func(refused string) { _, _ = fmt.Fprintln(errs, "width: not possible: "+refused) }, progress)
}

func drawInto(path string, played []simplot.Played) error {
	var text bytes.Buffer
	if err := simplot.Draw(&text, played); err != nil {
		return err
	}
	return os.WriteFile(path, text.Bytes(), 0o644) //nolint:gosec // a picture, for whoever made it to show
}

// worldGiven rejects flags of requests that would have no effect.
func worldGiven(c *cobra.Command) error {
	return cmp.Or(without(c, "rates", "prompt", "answer"), without(c, "trace", "format"))
}

// worldFlags defines the flags of the requests and the world.
func worldFlags(f *pflag.FlagSet, o *simcli.Options, ranks string) {
	f.StringVar(&o.Trace, "trace", "", "trace of requests: conversation or code (built in), or a file, plain or gzip; -: standard input")
	f.StringVar(&o.Format, "format", "", "format of the --trace file: mooncake, azure or rollout; empty: detected from its first line")
	f.StringVar(&o.Rates, "rates", "", "generated requests instead of a trace, as consecutive parts of SECONDSxREQUESTS_PER_SECOND, e.g. 300x2,60x20")
	f.IntVar(&o.Rollout, "rollout", o.Rollout, "number of generated requests that all arrive at time 0, instead of a trace; 0: none. Output lengths are log-normal (median 1,500 tokens, sigma 1.2, maximum 32,768)")
	f.Float64Var(&o.Prompt, "prompt", o.Prompt, "mean prompt length for --rates, in tokens")
	f.Float64Var(&o.Output, "answer", o.Output, "mean output length for --rates, in tokens")
	f.IntVar(&o.Times, "times", o.Times, "number of copies of each request")
	f.IntVar(&o.Concurrency, "concurrency", o.Concurrency, "number of concurrent requests of a closed loop, which ignores arrival times; 0: arrival times of the trace")
	f.StringVar(&o.Model, "model", o.Model, "model: "+strings.Join(simcli.Models(), ", "))
	f.IntVar(&o.Ranks, "ranks", o.Ranks, ranks)
	f.Float64Var(&o.RankGB, "rank-gb", o.RankGB, "maximum memory per rank, in GB")
	f.StringVar(&o.Truth, "truth", o.Truth, "engine whose measured kernels give the duration of a step: vllm, sglang, trtllm")
	f.StringVar(&o.Routing, "routing", o.Routing, "distribution of tokens over experts: balanced, power_law_1.01, power_law_1.2")
	f.Float64Var(&o.Noise, "noise", o.Noise, "relative standard deviation of the duration of a step")
	f.Uint64Var(&o.Seed, "seed", o.Seed, "random seed")
}
