package main

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"tangram.dev/operator/internal/bench/plots"
)

// plotsCommand draws the plots of docs/placement.md and docs/transitions.md from the output of benchmarks in the same folders.
func plotsCommand() *cobra.Command {
	var dir, transitions string
	c := &cobra.Command{
		Use: "plots", Short: "Draw moves.svg, floor.svg, forecast.svg and gaps.svg from the output of benchmarks", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			eplb, err := os.Open(filepath.Join(dir, "eplb.jsonl"))
			if err != nil {
				return err
			}
			defer func() { _ = eplb.Close() }() // only read
			predict, err := os.Open(filepath.Join(dir, "predict.jsonl"))
			if err != nil {
				return err
			}
			defer func() { _ = predict.Close() }() // only read
			if err := plots.Draw(eplb, predict, dir); err != nil {
				return err
			}
			throughput, err := os.Open(filepath.Join(transitions, "throughput-during.jsonl"))
			if err != nil {
				return err
			}
			defer func() { _ = throughput.Close() }() // only read
			return plots.Gaps(throughput, transitions)
		},
	}
	c.Flags().StringVar(&dir, "dir", "docs/placement", "folder with eplb.jsonl and predict.jsonl, for moves.svg, floor.svg and forecast.svg")
	c.Flags().StringVar(&transitions, "transitions", "docs/transitions", "folder with throughput-during.jsonl, for gaps.svg")
	return c
}
