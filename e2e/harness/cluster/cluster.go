// Package cluster starts a Kubernetes cluster with Tangram installed, and removes it.
package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"tangram.dev/e2e/kube"
)

// SystemNamespace is the namespace of the chart.
const SystemNamespace = "tangram-system"

// stepLimit is the timeout of each step of Up and Down: many times the usual duration.
const stepLimit = 5 * time.Minute

const stillEvery = 30 * time.Second // between lines of progress of a step

// Options of a cluster. Root and Dir must be set.
type Options struct {
	Root string // of the repository
	Dir  string // of the cluster's state; only one cluster runs at a time
	// MemoryPerNode limits the memory of a node's pods, e.g. "6Gi"; empty: tangram-cluster's default.
	MemoryPerNode string
	// Archives are additional images for the nodes, paths below Root.
	Archives []string
	// Values are values of the chart, e.g. "replicas=2".
	Values []string
	Say    func(format string, args ...any)
}

// Cluster is a running cluster.
type Cluster struct {
	o Options
	// Kube reaches all namespaces with Kube.In.
	Kube *kube.Client
}

// absolute makes paths absolute, for programs that run in other folders.
func (o *Options) absolute() error {
	for _, path := range []*string{&o.Root, &o.Dir} {
		abs, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		*path = abs
	}
	if o.Say == nil {
		o.Say = func(string, ...any) {}
	}
	return nil
}

func (o *Options) tool(name string) string { return filepath.Join(o.Root, "build/bin", name) }

// timed runs a step with a timeout of stepLimit, and reports its duration.
func (o *Options) timed(ctx context.Context, what string, step func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	began := time.Now()
	o.Say("%s ...", what)
	done := make(chan struct{})
	go func() {
		tick := time.NewTicker(stillEvery)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				o.Say("%s: still running after %.0f s", what, time.Since(began).Seconds())
			}
		}
	}()
	err := step(ctx)
	close(done)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	o.Say("%s: %.1f s", what, time.Since(began).Seconds())
	return nil
}

// Up assembles the images, starts the cluster, loads the images into its nodes and installs the chart. After an error,
// call Down to clean up.
func Up(ctx context.Context, o Options) (*Cluster, error) {
	if err := o.absolute(); err != nil {
		return nil, err
	}
	c := &Cluster{o: o, Kube: &kube.Client{Binary: o.tool("kubectl"), Kubeconfig: filepath.Join(o.Dir, "kubeconfig")}}
	var archives []string
	err := o.timed(ctx, "images", func(ctx context.Context) (err error) {
		archives, err = Images(ctx, o)
		for _, more := range o.Archives {
			archives = append(archives, filepath.Join(o.Root, more))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := o.timed(ctx, "cluster of two nodes", func(ctx context.Context) error {
		args := []string{"up", "--dir", o.Dir}
		if o.MemoryPerNode != "" {
			args = append(args, "--memory-per-node", o.MemoryPerNode)
		}
		return o.run(ctx, o.tool("tangram-cluster"), args...)
	}); err != nil {
		return nil, err
	}
	if err := o.timed(ctx, "images into the nodes", func(ctx context.Context) error {
		return o.run(ctx, o.tool("tangram-cluster"), append([]string{"load-image", "--dir", o.Dir}, archives...)...)
	}); err != nil {
		return nil, err
	}
	return c, o.timed(ctx, "chart", c.install)
}

// install installs or upgrades the chart.
func (c *Cluster) install(ctx context.Context) error {
	args := []string{"upgrade", "--install", "tangram", filepath.Join(c.o.Root, "charts/tangram"), "--kubeconfig", c.Kube.Kubeconfig,
		"-n", SystemNamespace, "--create-namespace", "--wait", "--timeout", "3m"}
	for _, value := range append([]string{"images.tag=" + imageTag}, c.o.Values...) {
		args = append(args, "--set", value)
	}
	return c.o.run(ctx, c.o.tool("helm"), args...)
}

// Down removes the cluster of a folder, also one that is half started or does not exist.
func Down(ctx context.Context, o Options) error {
	if err := o.absolute(); err != nil {
		return err
	}
	return o.timed(ctx, "cluster down", func(ctx context.Context) error { return o.run(ctx, o.tool("tangram-cluster"), "down", "--dir", o.Dir) })
}

// Models makes a PersistentVolume of the checkpoints (build/models) for a claim "models" of a namespace that may not
// exist yet, and makes them readable by unprivileged users.
func (c *Cluster) Models(ctx context.Context, namespace string) error {
	models := filepath.Join(c.o.Root, "build/models")
	if err := readable(models); err != nil {
		return err
	}
	return c.Kube.Apply(ctx, volume(namespace, models))
}

// readable makes files readable for all users: pods do not run as root, and a hostPath volume keeps its owner.
func readable(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("checkpoints (written by `make model`): %w", err)
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		want := info.Mode().Perm() | 0o444
		if entry.IsDir() {
			want |= 0o111
		}
		if !entry.IsDir() && !info.Mode().IsRegular() || want == info.Mode().Perm() {
			return nil
		}
		return os.Chmod(path, want) //nolint:gosec // weights are no secret
	})
}
