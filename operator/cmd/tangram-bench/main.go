// Command tangram-bench measures the planner. JSON lines on stdout, progress on stderr;
// QUICK=1 gives a figure within 45 s.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"tangram.dev/operator/internal/bench"
)

func main() {
	root := &cobra.Command{Use: "tangram-bench", Short: "Measures the planner", SilenceUsage: true, SilenceErrors: true}
	quick := os.Getenv("QUICK") == "1"
	root.AddCommand(
		&cobra.Command{Use: "resize-bytes", Short: "bytes a resize moves over the lower bound", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.ResizeBytes(c.OutOrStdout(), c.ErrOrStderr(), quick)
			}},
		&cobra.Command{Use: "repair-bytes", Short: "bytes a repair reads over those that no survivor holds", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.RepairBytes(c.OutOrStdout(), c.ErrOrStderr(), quick)
			}},
		&cobra.Command{Use: "plan-time", Short: "time to plan two reference transitions over a sort of keys, one thread", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.PlanTime(c.OutOrStdout(), c.ErrOrStderr(), quick)
			}},
		&cobra.Command{Use: "eplb", Short: "placement of experts: plan time, balance and moves, beside the algorithms in use", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.Eplb(c.OutOrStdout(), c.ErrOrStderr(), os.Getenv("DATE"), quick)
			}},
		&cobra.Command{Use: "eplb-small", Short: "placement of small cases against the exact optimum", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.EplbSmall(c.OutOrStdout(), c.ErrOrStderr(), quick)
			}},
		&cobra.Command{Use: "rounds", Short: "rounds in which experts move, over the fewest possible", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.Rounds(c.OutOrStdout(), c.ErrOrStderr(), quick)
			}},
		&cobra.Command{Use: "predict", Short: "next-window balance of placements made from a forecast, against the best fixed window", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.Predict(c.OutOrStdout(), c.ErrOrStderr(), quick)
			}},
		&cobra.Command{Use: "simulate", Short: "seconds to simulate an hour of chat traffic, one thread", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.Simulate(c.OutOrStdout(), c.ErrOrStderr(), quick)
			}},
		&cobra.Command{Use: "policy", Short: "latencies under the calibrated policy over hindsight's, four traces on three engines' kernels", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.Policy(c.OutOrStdout(), c.ErrOrStderr(), quick)
			}},
		&cobra.Command{Use: "policy-unseen", Short: "the same on traces drawn by date", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.PolicyUnseen(c.OutOrStdout(), c.ErrOrStderr(), os.Getenv("DATE"), quick)
			}},
		&cobra.Command{Use: "policy-hybrids", Short: "latencies under the calibrated policy with hybrids to choose, over those with modes ExpertParallel and TensorParallel alone", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.PolicyHybrids(c.OutOrStdout(), c.ErrOrStderr(), quick)
			}},
		&cobra.Command{Use: "width", Short: "attainment and rank-hours under the policy of the width, beside scalers of replicas", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.Width(c.OutOrStdout(), c.ErrOrStderr(), quick)
			}},
		&cobra.Command{Use: "slo-dynamics", Short: "attainment of an SLO over time when the load steps, by ways to change the width", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.SLODynamics(c.OutOrStdout(), c.ErrOrStderr(), quick)
			}},
		&cobra.Command{Use: "kv-overhead", Short: "memory that readiness to switch costs, and KV in a flip, of two models on 8 GPUs", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.KVOverhead(c.OutOrStdout(), c.ErrOrStderr(), quick)
			}},
		&cobra.Command{Use: "rollout", Short: "makespan of batches that only fall, of the better mode over ours", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.Rollout(c.OutOrStdout(), c.ErrOrStderr(), quick)
			}},
		&cobra.Command{Use: "crossover", Short: "requests at which modes cross by measured kernels; what it costs to choose by 256, or by a learned cost model", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.Crossover(c.OutOrStdout(), c.ErrOrStderr(), quick)
			}},
	)
	root.AddCommand(plotsCommand(), cudaModelCommand(quick))
	root.SetOut(os.Stdout)
	root.SetErr(os.Stderr)
	if err := root.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "tangram-bench:", err)
		os.Exit(1)
	}
}

func cudaModelCommand(quick bool) *cobra.Command {
	var tool string
	c := &cobra.Command{Use: "cuda-model", Short: "what switches of mode move on 8 GPUs: bytes by link and kernel, sectors, predicted time", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return bench.CudaModel(c.OutOrStdout(), c.ErrOrStderr(), tool, quick)
		}}
	c.Flags().StringVar(&tool, "traffic", "build/cxx/agent/device/tangram-traffic", "the program that counts sectors")
	return c
}
