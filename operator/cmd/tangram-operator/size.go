package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"tangram.dev/operator/internal/plancli"
	"tangram.dev/operator/pkg/layout"
)

// sizeCommand runs in a pod of the operator and reads a checkpoint. It writes the memory per rank, as JSON, to the file
// from which the kubelet takes the container's termination message.
func sizeCommand() *cobra.Command {
	var model, to string
	var rows uint32
	var pageBytes uint64
	in := plancli.SizeInput{Modes: []layout.Mode{layout.Expert, layout.Tensor}}
	c := &cobra.Command{Use: "size-checkpoint", Short: "Compute the memory per rank for a checkpoint (run by the operator in a pod)", Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(*cobra.Command, []string) error {
			size, err := plancli.SizeCheckpoint(model, rows, pageBytes, 0, in)
			if err != nil {
				return err
			}
			text, err := json.Marshal(size)
			if err != nil {
				return err
			}
			if err := os.WriteFile(to, text, 0o600); err != nil {
				return fmt.Errorf("--to: result not written: %w", err)
			}
			return nil
		}}
	f := c.Flags()
	f.StringVar(&model, "model", "", "folder of the checkpoint")
	f.StringVar(&to, "to", "/dev/termination-log", "file for the result")
	f.Uint32Var(&rows, "granule-rows", 0, "rows per granule; 0: chosen for the maximum number of ranks")
	f.Uint64Var(&pageBytes, "page-bytes", 4096, "page size of weight memory, in bytes")
	f.IntSliceVar(&in.Widths, "ranks", nil, "possible numbers of ranks of the world, in ascending order")
	f.IntVar(&in.RanksPerPod, "ranks-per-pod", 1, "number of ranks per pod")
	f.Uint32Var(&in.SpareBanks, "spare-banks", 2, "number of layers that one flip can change")
	f.Uint64Var(&in.KVTokens, "kv-tokens", 65536, "number of tokens in the KV cache of a rank")
	f.BoolVar(&in.Lenient, "lenient", false, "skip TensorParallel mode for numbers of ranks that cannot share an expert")
	for _, name := range []string{"model", "ranks"} {
		if err := c.MarkFlagRequired(name); err != nil {
			panic(err) // not the name of a flag: a bug in this file
		}
	}
	return c
}
