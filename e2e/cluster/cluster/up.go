package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"tangram.dev/e2e/cluster/host"
	"tangram.dev/e2e/cluster/machine"
)

// upLimit is the timeout of Up, which takes some ten seconds on an idle machine.
const upLimit = 5 * time.Minute

// Kubeconfig is the path of the admin's kubeconfig.
func Kubeconfig(dir string) string { return filepath.Join(dir, "kubeconfig") }

// Up starts a cluster and returns when its nodes are ready. After a failure only the logs are left, in DIR.logs. It
// first removes the remains of an earlier Up that was killed.
func Up(ctx context.Context, o Options) error {
	if err := o.complete(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, upLimit)
	defer cancel()
	unlock, err := host.Lock(ctx, lockLimit)
	if err != nil {
		return err
	}
	defer unlock()
	if err := vacant(ctx, o); err != nil {
		return err
	}
	if err := o.Preflight(); err != nil {
		return err
	}
	if err := up(ctx, o); err != nil {
		o.Say("failed; removing what is there")
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if e := remove(undo, o, true); e != nil {
			return errors.Join(err, fmt.Errorf("and the cluster does not go away (run down): %w", e))
		}
		return fmt.Errorf("%w (logs: %s.logs)", err, o.Dir)
	}
	return nil
}

// vacant checks that no cluster is running, and removes the remains of one in the same folder.
func vacant(ctx context.Context, o Options) error {
	owner, found, err := host.BridgeOwner()
	if err != nil {
		return err
	}
	if found && owner != "" && owner != o.Dir {
		return fmt.Errorf("another cluster is up, in %s, and a machine has room for one: `tangram-cluster down --dir %s` first", owner, owner)
	}
	s, err := readState(o.Dir)
	if err != nil {
		return err
	}
	running, err := supervisors(o.Dir)
	if err != nil {
		return err
	}
	if s != nil && s.Complete && len(running) > 0 {
		return fmt.Errorf("the cluster in %s is up already: `tangram-cluster status --dir %s`, or down", o.Dir, o.Dir)
	}
	if s != nil || found || len(running) > 0 {
		o.Say("removing the remains of an interrupted run")
		return remove(ctx, o, false)
	}
	entries, err := os.ReadDir(o.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(entries) > 1 || len(entries) == 1 && entries[0].Name() != newStateFile {
		return fmt.Errorf("folder %s is not empty and not a cluster's: give one of its own", o.Dir)
	}
	return nil
}

func up(ctx context.Context, o Options) error {
	began := time.Now()
	say := func(format string, args ...any) {
		o.Say("%5.1f s  %s", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	s, err := prepare(o)
	if err != nil {
		return err
	}
	if err := writePKI(&o); err != nil {
		return fmt.Errorf("certificates: %w", err)
	}
	reserved, err := o.reserved()
	if err != nil {
		return err
	}
	say("starting the control plane and %d nodes", o.Nodes)
	var machines []*started
	for i := 0; i <= o.Nodes; i++ {
		spec := &machine.Spec{Name: machine.ControlName, Index: i, Nodes: o.Nodes, Dir: o.Dir, Kube: o.kube(), Deb: o.deb()}
		if i > 0 {
			spec.Name, spec.ReservedMemory = machine.NodeName(i), reserved
		}
		if err := spec.Write(); err != nil {
			return fmt.Errorf("machine %s: %w", spec.Name, err)
		}
		m, err := start(ctx, o, spec)
		if err != nil {
			return err
		}
		machines = append(machines, m)
	}
	// The first failure ends the other waits.
	group, ctx := errgroup.WithContext(ctx)
	finished := make(chan struct{})
	for _, m := range machines {
		group.Go(func() error { return m.watch(ctx, finished) })
	}
	group.Go(func() error {
		defer close(finished)
		return settle(ctx, o, machines, say)
	})
	if err := group.Wait(); err != nil {
		return err
	}
	s.Complete = true
	if err := s.write(o.Dir); err != nil {
		return err
	}
	say("ready: export KUBECONFIG=%s", Kubeconfig(o.Dir))
	return nil
}

// settle loads images while the control plane starts, and waits until everything is ready.
func settle(ctx context.Context, o Options, machines []*started, say func(string, ...any)) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, m := range machines[1:] {
		group.Go(func() error {
			if err := load(ctx, o, m.pid, m.spec.Name, append([]string{o.pause()}, o.Images...)); err != nil {
				return err
			}
			say("node %s has its images", m.spec.Name)
			return nil
		})
	}
	group.Go(func() error {
		client, err := newClient(o.Dir)
		if err != nil {
			return err
		}
		if err := waitServer(ctx, client); err != nil {
			return err
		}
		say("the apiserver is ready")
		if err := waitNodes(ctx, client, o.Nodes); err != nil {
			return err
		}
		say("%d nodes are ready", o.Nodes)
		return waitServiceAccount(ctx, client)
	})
	return group.Wait()
}

// prepare prepares the host. The state to restore is written to disk first.
func prepare(o Options) (*state, error) {
	groups, err := host.FindCgroups()
	if err != nil {
		return nil, err
	}
	s := &state{Nodes: o.Nodes}
	if s.Boot, err = bootID(); err != nil {
		return nil, err
	}
	if s.Sysctls, err = host.ReadSysctls(); err != nil {
		return nil, err
	}
	if s.Controllers, err = groups.Disabled(); err != nil {
		return nil, err
	}
	for _, point := range machine.MountPoints {
		if _, err := os.Stat(point); errors.Is(err, fs.ErrNotExist) {
			s.Folders = append(s.Folders, point)
		}
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil { //nolint:gosec // pods of any user pass through
		return nil, err
	}
	if err := s.write(o.Dir); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	for _, folder := range s.Folders {
		if err := os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // as the programs make it
			return nil, err
		}
	}
	address := machine.Network(machine.MachineNetwork)
	if err := host.AddBridge(o.Dir, &net.IPNet{IP: net.ParseIP(machine.HostAddress), Mask: address.Mask}); err != nil {
		return nil, err
	}
	if err := groups.Enable(s.Controllers); err != nil {
		return nil, err
	}
	for i := 1; i <= o.Nodes; i++ {
		if err := host.AddRoute(machine.Network(machine.PodSubnet(i)), net.ParseIP(machine.NodeAddress(i))); err != nil {
			return nil, err
		}
	}
	return s, nil
}
