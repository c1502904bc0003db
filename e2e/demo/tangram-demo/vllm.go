package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"tangram.dev/e2e/kube"
	"tangram.dev/e2e/load"
)

const (
	vllmImage     = "build/images/vllm.tar" // built by make vllm-image
	vllmPreset    = "demo-f32"              // a dtype in which vLLM on CPUs computes like transformers
	vllmTokenizer = "qwen3"                 // from make vllm-setup, with a chat template
	vllmAnswer    = 48                      // maximum tokens per answer: two cores serve some sixty a second
)

// vllmFlags are flags of the engines in addition to those of manifests/vllm, for worlds of processes.
var vllmFlags = []string{"--max-batch-tokens", "64"}

func vllmCommand() *cobra.Command {
	o := &options{vllm: true}
	c := &cobra.Command{Use: "vllm", Short: "Run the scenario on a cluster with vLLM engines and chats, and compare tokens and texts with transformers", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return onCluster(cmd.Context(), *o) }}
	o.worldFlags(c)
	o.clusterFlags(c)
	c.Flags().IntVar(&o.streams, "streams", 4, "minimum number of running streams when an event begins; with fewer, the demo fails")
	c.Flags().BoolVar(&o.keep, "keep", false, "keep the cluster until tangram-demo cluster-down")
	for flag, value := range map[string]string{"ranks": "2", "out": "build/demo-vllm", "span": "24s", "pause": "5s", "concurrency": "8"} {
		f := c.Flags().Lookup(flag)
		f.DefValue = value
		if err := f.Value.Set(value); err != nil {
			panic(err) // a constant of the wrong kind
		}
	}
	return c
}

// playsOfVLLM kills the process of an engine; the process that forked it forks the next one.
func playsOfVLLM(ctx context.Context, o options, k *kube.Client, _ *load.Trace, r *report, begin func(string)) (err error) {
	if r.GatewayBefore, err = gatewayCounts(ctx, k); err != nil {
		return err
	}
	if err := sleep(ctx, o.pause); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, 2*waitAct)
	defer cancel()
	died, err := engineDiesOnCluster(limited, o, k, begin)
	if err != nil {
		return err
	}
	say("%s", died.outcome())
	r.Acts = []*act{died}
	return sleep(ctx, time.Second)
}
