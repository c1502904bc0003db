package main

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"tangram.dev/operator/internal/bench/plots"
)

// plotsCommand draws the plots of docs/placement.md from the benches' output beside them.
func plotsCommand() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use: "plots", Short: "draws moves.svg, floor.svg and forecast.svg from eplb.jsonl and predict.jsonl, all in one folder", Args: cobra.NoArgs,
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
			return plots.Draw(eplb, predict, dir)
		},
	}
	c.Flags().StringVar(&dir, "dir", "docs/placement", "folder")
	return c
}
