// tangram-demo runs four transitions of a world under load and checks every token against a run on one rank: with local
// processes (local), or on a Kubernetes cluster that it starts (cluster). Exit code 1 if a promise is broken.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"tangram.dev/e2e/load"
)

type options struct {
	seed       uint64
	ranks      int
	out, root  string
	checkpoint string
	span       time.Duration // of one round of the trace
	pause      time.Duration // before and between transitions
	atOnce     int
	leastStep  time.Duration // of a step with work

	only   string // recovery, burst-real
	bench  bool   // local
	brief  bool   // no progress lines within a step, except on a terminal
	rounds int    // of all transitions; the bench takes medians

	clusterDir string // cluster
	keep       bool
	vllm       bool // engines of agent/vllm
	streams    int  // minimum that runs when an event begins
}

const (
	reportFile = "report.json"
	tablesFile = "report.txt"
)

var errPromise = errors.New("the run broke a promise")

func main() { os.Exit(command()) }

// command returns the exit code.
func command() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	root := &cobra.Command{Use: "tangram-demo", Short: "Change the layout of a model while it serves, and run benchmarks", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(vllmCommand(), vllmOverheadCommand(), vllmTransitionCommand(), vllmMemoryCommand(), vllmRestartCommand(), scaleUpCommand(), localCommand(), recoveryCommand(), falseAlarmCommand(), controlCostCommand(), walkCommand(), kvOverheadCommand(), reshardCommand(),
		interferenceCommand(), simulateRealCommand(), burstRealCommand(), smoothCommand(), throughputDuringCommand(), frontDoorCommand(), frontProxyCommand(), clusterCommand(), clusterUpCommand(), clusterDownCommand(), pictureCommand())
	if err := root.ExecuteContext(ctx); err != nil {
		terminal.stop()
		fmt.Fprintln(os.Stderr, "tangram-demo:", err)
		return 1
	}
	return 0
}

func localCommand() *cobra.Command {
	o := &options{}
	c := &cobra.Command{Use: "local", Short: "Run the scenario with local processes", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return local(cmd.Context(), *o) }}
	o.worldFlags(c)
	o.rootFlag(c)
	o.stepFlag(c)
	c.Flags().BoolVar(&o.bench, "bench", false, "print JSON lines of the transition benchmark instead of the tables")
	return c
}

func recoveryCommand() *cobra.Command {
	o := &options{}
	c := &cobra.Command{Use: "recovery", Short: "Benchmark recovery: kill, stop or cut off ranks under load", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return recovery(cmd.Context(), *o) }}
	o.worldFlags(c)
	o.rootFlag(c)
	c.Flags().StringVar(&o.only, "only", "", "kind of failure to run, e.g. engine-stop; empty: all")
	return c
}

func falseAlarmCommand() *cobra.Command {
	o := &options{}
	c := &cobra.Command{Use: "false-alarm", Short: "Benchmark false-alarm: count fences while no process dies", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return falseAlarm(cmd.Context(), *o) }}
	o.worldFlags(c)
	o.rootFlag(c)
	return c
}

func controlCostCommand() *cobra.Command {
	o := &options{}
	c := &cobra.Command{Use: "control-cost", Short: "Benchmark control-cost: transitions of 64 ranks of DeepSeek-V3 that transfer no weights", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return controlCost(cmd.Context(), *o) }}
	c.Flags().StringVar(&o.out, "out", "build/bench/control-cost", "folder for logs")
	o.rootFlag(c)
	return c
}

func kvOverheadCommand() *cobra.Command {
	o := &options{}
	c := &cobra.Command{Use: "kv-overhead-ghost", Short: "Benchmark kv-overhead-ghost: memory in use during mode switches of Qwen3-235B that transfer no weights, as agents count it", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return kvOverhead(cmd.Context(), *o) }}
	c.Flags().StringVar(&o.out, "out", "build/bench/kv-overhead-ghost", "folder for logs")
	o.rootFlag(c)
	return c
}

func reshardCommand() *cobra.Command {
	o := &options{}
	c := &cobra.Command{Use: "reshard", Short: "Benchmark reshard: transfer rate between whole and sharded experts, relative to a plain copy between two processes", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return reshard(cmd.Context(), *o) }}
	c.Flags().StringVar(&o.out, "out", "build/bench/reshard", "folder for logs")
	o.rootFlag(c)
	return c
}

func simulateRealCommand() *cobra.Command {
	o := &options{}
	c := &cobra.Command{Use: "simulate-real", Short: "Benchmark simulate-real: the simulator, compared with real processes with paced steps", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return simulateReal(cmd.Context(), *o) }}
	c.Flags().StringVar(&o.out, "out", "build/bench/simulate-real", "folder for logs")
	o.rootFlag(c)
	return c
}

func burstRealCommand() *cobra.Command {
	o := &options{}
	c := &cobra.Command{Use: "burst-real", Short: "Benchmark burst-real: bursts on real processes with paced steps, in each mode and in mode Auto", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return burstReal(cmd.Context(), *o) }}
	c.Flags().StringVar(&o.out, "out", "build/bench/burst-real", "folder for logs and bursts.svg")
	c.Flags().StringVar(&o.only, "only", "", "prefix of the variants to run, without a summary, e.g. Auto; empty: all, with a summary")
	o.rootFlag(c)
	return c
}

func interferenceCommand() *cobra.Command {
	o := &options{}
	c := &cobra.Command{Use: "interference", Short: "Benchmark interference: cost of resizes for running requests", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return interference(cmd.Context(), *o) }}
	c.Flags().StringVar(&o.out, "out", "build/bench/interference", "folder for logs")
	c.Flags().StringVar(&o.checkpoint, "checkpoint", "build/models/wide", "folder of the checkpoint")
	o.rootFlag(c)
	return c
}

func clusterCommand() *cobra.Command {
	o := &options{}
	c := &cobra.Command{Use: "cluster", Short: "Run the scenario on a Kubernetes cluster that this command starts and removes", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return onCluster(cmd.Context(), *o) }}
	o.worldFlags(c)
	o.clusterFlags(c)
	o.stepFlag(c)
	c.Flags().BoolVar(&o.keep, "keep", false, "keep the cluster until tangram-demo cluster-down")
	return c
}

func clusterUpCommand() *cobra.Command {
	o := &options{ranks: 4}
	c := &cobra.Command{Use: "cluster-up", Short: "Start the cluster of the demo and keep it", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return clusterUp(cmd.Context(), *o) }}
	c.Flags().IntVar(&o.ranks, "ranks", 4, "initial number of ranks")
	o.clusterFlags(c)
	return c
}

func clusterDownCommand() *cobra.Command {
	o := &options{}
	c := &cobra.Command{Use: "cluster-down", Short: "Remove the cluster of the demo, in any state", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return clusterDown(cmd.Context(), *o) }}
	o.clusterFlags(c)
	return c
}

func (o *options) worldFlags(c *cobra.Command) {
	f := c.Flags()
	f.Uint64Var(&o.seed, "seed", 1, "random seed of prompts and sampling")
	f.IntVar(&o.ranks, "ranks", 4, "initial number of ranks")
	f.StringVar(&o.out, "out", "build/demo", "folder for logs and reports")
	f.StringVar(&o.checkpoint, "checkpoint", "build/models/deep", "folder of the checkpoint for the run on one rank and for local worlds")
	f.DurationVar(&o.span, "span", 12*time.Second, "duration of one round of the trace (80 requests)")
	f.DurationVar(&o.pause, "pause", 3*time.Second, "pause before each transition")
	f.IntVar(&o.atOnce, "concurrency", 8, "maximum number of concurrent requests")
}

func (o *options) stepFlag(c *cobra.Command) {
	c.Flags().DurationVar(&o.leastStep, "min-step", 0, "minimum duration of an engine's step, e.g. 200ms; 0: steps are as fast as the processors allow")
}

func (o *options) rootFlag(c *cobra.Command) {
	c.Flags().StringVar(&o.root, "root", ".", "root of the repository")
}

func (o *options) clusterFlags(c *cobra.Command) {
	o.rootFlag(c)
	c.Flags().StringVar(&o.clusterDir, "cluster-dir", "build/cluster", "folder for the state of the cluster")
}

// joiners is the number of ranks that a step adds.
func (o *options) joiners() int {
	if o.vllm { // two cores serve three of them
		return 1
	}
	return 2
}

// step is a step of the demo.
type step struct {
	name, mode string
	ranks      int
	resize     bool
}

func steps(ranks, joiners int) []step {
	more := ranks + joiners
	return []step{
		{fmt.Sprintf("%d -> %d ranks", ranks, more), "ExpertParallel", more, true},
		{"EP -> TP", "TensorParallel", more, false},
		{"TP -> EP", "ExpertParallel", more, false},
		{fmt.Sprintf("%d -> %d ranks", more, ranks), "ExpertParallel", ranks, true},
	}
}

// finish judges the results, writes the report and its tables, and prints them; for a local run it prints one sentence.
func finish(o options, r *report, results, reference []*load.Result) error {
	if err := r.judge(results, reference, reference != nil); err != nil {
		return err
	}
	if err := r.save(filepath.Join(o.out, reportFile)); err != nil {
		return err
	}
	if o.bench {
		return r.printBench(os.Stdout)
	}
	tables := filepath.Join(o.out, tablesFile)
	if err := r.saveTables(tables); err != nil {
		return err
	}
	if !r.local {
		r.printTable(os.Stdout)
	}
	if len(r.Broken) > 0 {
		return fmt.Errorf("%w: %s. Full report: %s", errPromise, strings.Join(r.Broken, "; "), tables)
	}
	if r.local {
		_, err := fmt.Println(r.verdict(tables))
		return err
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
