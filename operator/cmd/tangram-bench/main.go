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
	root := &cobra.Command{Use: "tangram-bench", Short: "Measure the planner and the policies", SilenceUsage: true, SilenceErrors: true}
	quick := os.Getenv("QUICK") == "1"
	root.AddCommand(
		&cobra.Command{Use: "resize-bytes", Short: "Measure the bytes that a resize moves, relative to the lower bound", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.ResizeBytes(c.OutOrStdout(), c.ErrOrStderr(), quick)
			}},
		&cobra.Command{Use: "repair-bytes", Short: "Measure the bytes that a repair reads, relative to the bytes that no survivor has", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.RepairBytes(c.OutOrStdout(), c.ErrOrStderr(), quick)
			}},
		&cobra.Command{Use: "plan-time", Short: "Measure the time to plan two reference transitions, relative to a sort of keys, on one thread", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.PlanTime(c.OutOrStdout(), c.ErrOrStderr(), quick)
			}},
		&cobra.Command{Use: "eplb", Short: "Compare the placement of experts with published algorithms: plan time, balance and moves", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.Eplb(c.OutOrStdout(), c.ErrOrStderr(), os.Getenv("DATE"), quick)
			}},
		&cobra.Command{Use: "eplb-small", Short: "Compare the placement of experts in small cases with the exact optimum", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.EplbSmall(c.OutOrStdout(), c.ErrOrStderr(), quick)
			}},
		&cobra.Command{Use: "rounds", Short: "Measure the number of rounds in which experts move, relative to the minimum", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.Rounds(c.OutOrStdout(), c.ErrOrStderr(), quick)
			}},
		&cobra.Command{Use: "predict", Short: "Measure the balance of placements for a forecast in the next window, relative to the best fixed window", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.Predict(c.OutOrStdout(), c.ErrOrStderr(), quick)
			}},
		&cobra.Command{Use: "simulate", Short: "Measure the time to simulate one hour of chat traffic, on one thread", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.Simulate(c.OutOrStdout(), c.ErrOrStderr(), quick)
			}},
		&cobra.Command{Use: "policy", Short: "Measure latencies under policy calibrated, relative to hindsight, for four traces and three engines", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.Policy(c.OutOrStdout(), c.ErrOrStderr(), quick)
			}},
		&cobra.Command{Use: "policy-unseen", Short: "Measure latencies under policy calibrated, relative to hindsight, for traces seeded by the date", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.PolicyUnseen(c.OutOrStdout(), c.ErrOrStderr(), os.Getenv("DATE"), quick)
			}},
		&cobra.Command{Use: "policy-hybrids", Short: "Measure latencies under policy calibrated with hybrid layouts, relative to only ExpertParallel and TensorParallel", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.PolicyHybrids(c.OutOrStdout(), c.ErrOrStderr(), quick)
			}},
		&cobra.Command{Use: "width", Short: "Compare SLO attainment and rank-hours of policy width with autoscalers of replicas", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.Width(c.OutOrStdout(), c.ErrOrStderr(), quick)
			}},
		&cobra.Command{Use: "slo-dynamics", Short: "Measure SLO attainment over time after a load step, by scaling method", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.SLODynamics(c.OutOrStdout(), c.ErrOrStderr(), quick)
			}},
		&cobra.Command{Use: "kv-overhead", Short: "Measure the memory that switching needs, and the KV cache in a flip, for two models on 8 GPUs", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.KVOverhead(c.OutOrStdout(), c.ErrOrStderr(), quick)
			}},
		&cobra.Command{Use: "rollout", Short: "Measure the makespan of rollout batches: better static mode relative to policy calibrated", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return bench.Rollout(c.OutOrStdout(), c.ErrOrStderr(), quick)
			}},
		&cobra.Command{Use: "crossover", Short: "Compute the crossover of the modes from measured kernels, and the cost of a threshold of 256 and of a learned cost model", Args: cobra.NoArgs,
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
	c := &cobra.Command{Use: "cuda-model", Short: "Compute the bytes per link and kernel, sectors and predicted time of mode switches on 8 GPUs", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return bench.CudaModel(c.OutOrStdout(), c.ErrOrStderr(), tool, quick)
		}}
	c.Flags().StringVar(&tool, "traffic", "build/cxx/agent/device/tangram-traffic", "path of the program that counts sectors")
	return c
}
