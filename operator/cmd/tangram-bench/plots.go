package main

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"tangram.dev/operator/internal/bench/plots"
)

// plotsCommand draws the plots of docs/placement.md and docs/transitions.md from the benches' output beside them.
func plotsCommand() *cobra.Command {
	var dir, transitions string
	c := &cobra.Command{
		Use: "plots", Short: "draws moves.svg, floor.svg and forecast.svg from eplb.jsonl and predict.jsonl, and gaps.svg from throughput-during.jsonl, each in a folder", Args: cobra.NoArgs,
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
	c.Flags().StringVar(&dir, "dir", "docs/placement", "folder of eplb.jsonl and predict.jsonl")
	c.Flags().StringVar(&transitions, "transitions", "docs/transitions", "folder of throughput-during.jsonl")
	return c
}
