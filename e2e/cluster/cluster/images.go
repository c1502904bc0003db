package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"tangram.dev/e2e/cluster/host"
	"tangram.dev/e2e/cluster/machine"
)

// LoadImages loads archives into every running node. The nodes share the large files.
func LoadImages(ctx context.Context, o Options, archives []string) error {
	if err := o.complete(); err != nil {
		return err
	}
	running, err := supervisors(o.Dir)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	nodes := 0
	var homes []string
	for _, s := range running {
		if s.Name != machine.ControlName {
			nodes++
			homes = append(homes, filepath.Join(o.Dir, s.Name))
			group.Go(func() error { return load(ctx, o, s.PID, s.Name, archives) })
		}
	}
	if nodes == 0 {
		return fmt.Errorf("no node of a cluster in %s runs", o.Dir)
	}
	if err := group.Wait(); err != nil {
		return err
	}
	slices.Sort(homes)
	freed, err := share(homes)
	if err != nil {
		return err
	}
	o.Say("%d images in %d nodes, which share %d MiB of them", len(archives), nodes, freed>>20)
	return nil
}

// load loads archives into the node whose supervisor has this PID, as soon as its containerd listens.
func load(ctx context.Context, o Options, pid int, node string, archives []string) error {
	address := machine.ContainerdAddress(pid)
	if err := host.Poll(ctx, 20*time.Millisecond, time.Minute, func() error {
		return machine.Listens(ctx, "unix", address)
	}); err != nil {
		return fmt.Errorf("node %s: containerd does not listen: %w", node, err)
	}
	for _, archive := range archives {
		command := exec.CommandContext(ctx, o.ctr(), "--address", address, "--namespace", "k8s.io", "images", "import", archive)
		command.Env = append(os.Environ(), "LD_LIBRARY_PATH="+machine.Libraries(o.deb()))
		// Otherwise it would wait forever for a dead containerd if this program is killed meanwhile.
		command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if output, err := command.CombinedOutput(); err != nil {
			return errors.Join(fmt.Errorf("node %s: image %s: %w: %s", node, archive, err, strings.TrimSpace(string(output))), ctx.Err())
		}
	}
	return nil
}
