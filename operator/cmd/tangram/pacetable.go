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
		Short: "writes the seconds of a step, of measured kernels, for engines that have no accelerators (tangram-engine --pace)",
		Long: `Writes to FILE (-: stdout) what steps of all widths up to --ranks last on measured accelerators, in modes ExpertParallel and TensorParallel and what was measured
between them, as JSON: the very seconds that tangram simulate --truth takes. tangram-engine --pace FILE has its steps last as long.
Widths between those that were measured lie between them, straight in logarithms.`,
		Example: "  tangram pace-table pace.json --model Qwen3-30B-A3B --engine trtllm --ranks 6",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("%s takes one FILE to write to (-: stdout), found %d", c.CommandPath(), len(args))
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
	f.StringVar(&engine, "engine", engine, "engine whose kernels: vllm, sglang, trtllm")
	f.StringVar(&routing, "routing", routing, "how skewed the tokens are over the experts: balanced, power_law_1.01, power_law_1.2")
	f.IntVar(&ranks, "ranks", ranks, "ranks of the widest world")
	return c
}
