package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"tangram.dev/operator/internal/simcli"
	"tangram.dev/operator/pkg/kernels"
)

func paceTableCommand() *cobra.Command {
	model, engine, routing, ranks := "Qwen3-30B-A3B", "vllm", "balanced", 8
	c := &cobra.Command{
		Use:   "pace-table",
		Short: "writes the seconds of a step, of measured kernels, for engines that have no accelerators (tangram-engine --pace)",
		Long: `Writes to stdout what steps of all widths up to --ranks last on measured accelerators, in modes Expert and Tensor and what was measured
between them, as JSON: the very seconds that tangram simulate --truth takes. tangram-engine --pace FILE has its steps last as long.
Widths between those that were measured lie between them, straight in logarithms.`,
		Example: "  tangram pace-table --model Qwen3-30B-A3B --engine trtllm --ranks 6 > pace.json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if ranks < 1 {
				return fmt.Errorf("--ranks %d: at least 1", ranks)
			}
			v, err := simcli.View(model, ranks)
			if err != nil {
				return fmt.Errorf("--model: %w", err)
			}
			table, err := kernels.Open(model)
			if err != nil {
				return fmt.Errorf("--model: %w", err)
			}
			compiled, err := kernels.Compile(table, v, engine, routing, ranks)
			if err != nil {
				return err
			}
			return compiled.WriteJSON(c.OutOrStdout())
		},
	}
	f := c.Flags()
	f.StringVar(&model, "model", model, "model with kernel tables")
	f.StringVar(&engine, "engine", engine, "engine whose kernels: vllm, sglang, trtllm")
	f.StringVar(&routing, "routing", routing, "how skewed the tokens are over the experts: balanced, power_law_1.01, power_law_1.2")
	f.IntVar(&ranks, "ranks", ranks, "ranks of the widest world")
	return c
}
