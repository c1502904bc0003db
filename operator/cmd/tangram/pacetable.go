package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"tangram.dev/operator/internal/simcli"
	"tangram.dev/operator/pkg/kernels"
)

func paceTableCommand() *cobra.Command {
	model, engine, routing, ranks := "Qwen3-30B-A3B", "vllm", "balanced", 8
	c := &cobra.Command{
		Use:   "pace-table FILE",
		Short: "Write a table of step durations for engines without accelerators (tangram-engine --pace)",
		Long: `Writes the durations of steps to FILE (-: standard output) as JSON. With tangram-engine --pace FILE, each step takes its duration in the table.
The table has all numbers of ranks up to --ranks, in ExpertParallel and TensorParallel mode and in the measured hybrids.
The durations come from kernels measured on accelerators; tangram simulate --truth uses the same ones.
Between two measured numbers of ranks, durations are interpolated linearly in logarithms.`,
		Example: "  tangram pace-table pace.json --model Qwen3-30B-A3B --engine trtllm --ranks 6",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("%s takes one argument, FILE (-: standard output), found %d", c.CommandPath(), len(args))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if err := simcli.CheckRanks("--ranks", ranks); err != nil {
				return err
			}
			v, table, err := simcli.Tables(model, ranks)
			if err != nil {
				return err
			}
			if err := simcli.CheckKernels(table, "--engine", engine, routing); err != nil {
				return err
			}
			compiled, err := kernels.Compile(table, v, engine, routing, ranks)
			if err != nil {
				return err
			}
			if args[0] == "-" {
				return compiled.WriteJSON(c.OutOrStdout())
			}
			var text bytes.Buffer
			if err := compiled.WriteJSON(&text); err != nil {
				return err
			}
			return os.WriteFile(args[0], text.Bytes(), 0o644) //nolint:gosec // a table, for whoever made it to show
		},
	}
	f := c.Flags()
	f.StringVar(&model, "model", model, "model: "+strings.Join(simcli.Models(), ", "))
	f.StringVar(&engine, "engine", engine, "engine whose measured kernels are used: vllm, sglang, trtllm")
	f.StringVar(&routing, "routing", routing, "distribution of tokens over experts: balanced, power_law_1.01, power_law_1.2")
	f.IntVar(&ranks, "ranks", ranks, "maximum number of ranks")
	return c
}
