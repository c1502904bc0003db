// Package cluster tests Tangram on a real Kubernetes cluster.
package cluster

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"tangram.dev/e2e/harness/cluster"
	"tangram.dev/tests/internal/worlds"
)

const (
	root = "../.."
	dir  = "../../build/cluster-test"
)

var up *cluster.Cluster // set by TestMain

func TestMain(m *testing.M) {
	// Parallel tests mostly wait.
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	os.Exit(withCluster(m))
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// withCluster returns the exit code of the tests, or 1 if the cluster failed or left something on the host.
func withCluster(m *testing.M) (code int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o := cluster.Options{Root: root, Dir: dir, MemoryPerNode: "6Gi", Values: []string{"customMetrics.enabled=true"}, Say: say}
	if withVLLM() {
		o.Archives = []string{vllmImage}
	}
	down := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		return cluster.Down(ctx, o)
	}
	if err := down(); err != nil { // removes the remains of a killed run
		say("%v", err)
		return 1
	}
	before, err := takeSnapshot()
	if err != nil {
		say("%v", err)
		return 1
	}
	defer func() {
		if os.Getenv("TANGRAM_CLUSTER_KEEP") == "1" {
			return
		}
		if err := down(); err != nil {
			say("%v", err)
			code = 1
		}
		if left := leftSince(before); len(left) > 0 {
			say("left after the cluster is down:\n%s", strings.Join(left, "\n"))
			if !worlds.IsCI() {
				code = 1
			}
		}
	}()
	if up, err = cluster.Up(ctx, o); err != nil {
		say("%v", err)
		return 1
	}
	defer oneRank.stop()
	ended, interrupted := make(chan int, 1), ctx.Done()
	go func() { ended <- m.Run() }()
	select { // tests handle no signals, so an interrupted run is cleaned up here
	case code = <-ended:
		return max(code, namespacesGone(ctx))
	case <-interrupted:
		return 1
	}
}

// namespacesGone waits until all tests' namespaces are gone; 1 if one is not removed.
func namespacesGone(ctx context.Context) (code int) {
	began := time.Now()
	for _, ns := range left.namespaces {
		if err := up.AwaitNamespaceGone(ctx, ns); err != nil {
			say("%v", err)
			code = 1
		}
	}
	say("namespaces of %d worlds are gone, %.1f s after the last test", len(left.namespaces), time.Since(began).Seconds())
	return code
}
