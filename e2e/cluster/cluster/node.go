package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"tangram.dev/e2e/cluster/host"
	"tangram.dev/e2e/cluster/machine"
)

// KillMachine kills every process of a machine (a node, or cp) together, like a power loss.
func KillMachine(ctx context.Context, o Options, name string) error {
	return change(ctx, o, name, func(s *host.Supervisor) error {
		if s == nil {
			return fmt.Errorf("machine %s does not run", name)
		}
		return s.Kill(ctx, 0)
	})
}

// StartMachine starts a machine that was killed; its disk is unchanged.
func StartMachine(ctx context.Context, o Options, name string) error {
	return change(ctx, o, name, func(s *host.Supervisor) error {
		if s != nil {
			return fmt.Errorf("machine %s runs already, as process %d", name, s.PID)
		}
		spec, err := machine.ReadSpec(o.Dir, name)
		if err != nil {
			return err
		}
		m, err := start(ctx, o, spec)
		if err != nil || spec.Control() {
			return err
		}
		// Without archives this only waits for containerd.
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		failed := make(chan error, 1)
		go func() { failed <- load(ctx, o, m.pid, name, nil) }()
		select {
		case err := <-failed:
			return err
		case <-m.ended:
			return m.failure()
		}
	})
}

// SetLink cuts (up is false) or joins a machine's link to the network. Its processes keep running.
func SetLink(ctx context.Context, o Options, name string, up bool) error {
	return change(ctx, o, name, func(s *host.Supervisor) error {
		if s == nil {
			return fmt.Errorf("machine %s does not run", name)
		}
		return host.SetLink(name, up)
	})
}

// change runs an action on a machine of the cluster; the supervisor is nil if the machine does not run.
func change(ctx context.Context, o Options, name string, do func(*host.Supervisor) error) error {
	if err := o.complete(); err != nil {
		return err
	}
	unlock, err := host.Lock(ctx, lockLimit)
	if err != nil {
		return err
	}
	defer unlock()
	s, err := readState(o.Dir)
	if err != nil {
		return err
	}
	if s == nil {
		return fmt.Errorf("no cluster in %s", o.Dir)
	}
	if names := machines(s); !slices.Contains(names, name) {
		return fmt.Errorf("machine %q: the cluster in %s has %s", name, o.Dir, strings.Join(names, ", "))
	}
	running, err := supervisors(o.Dir)
	if err != nil {
		return err
	}
	if at := slices.IndexFunc(running, func(s host.Supervisor) bool { return s.Name == name }); at >= 0 {
		return do(&running[at])
	}
	return do(nil)
}

// machines lists a cluster's machines by name.
func machines(s *state) []string {
	names := []string{machine.ControlName}
	for i := 1; i <= s.Nodes; i++ {
		names = append(names, machine.NodeName(i))
	}
	return names
}

// MachineStatus is the state of one machine.
type MachineStatus struct {
	Name       string
	PID        int // 0: it does not run
	Address    string
	Link       bool     // up
	Components []string // NAME(PID on the host) of each running component
	Node       string   // "Ready", or why not; empty for the control plane
}

// Status returns the state of a cluster's machines.
func Status(ctx context.Context, o Options) ([]MachineStatus, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	s, err := readState(o.Dir)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return nil, fmt.Errorf("no cluster in %s", o.Dir)
	}
	running, err := supervisors(o.Dir)
	if err != nil {
		return nil, err
	}
	processes, err := host.Processes()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	nodes := map[string]string{}
	client, err := newClient(o.Dir)
	if err == nil {
		nodes, err = readyNodes(ctx, client)
	}
	var all []MachineStatus
	for i, name := range machines(s) {
		m := MachineStatus{Name: name, Address: machine.ControlAddress, Link: host.LinkUp(name)}
		if i > 0 {
			why, known := nodes[name]
			m.Address = machine.NodeAddress(i)
			switch {
			case err != nil:
				m.Node = "the apiserver does not answer"
			case !known:
				m.Node = "not registered"
			case why == "":
				m.Node = "Ready"
			default:
				m.Node = why
			}
		}
		for _, s := range running {
			if s.Name == name {
				m.PID = s.PID
			}
		}
		for _, p := range processes {
			// Only the supervisor's own children, not the adopted orphans (shims of pods).
			if m.PID != 0 && p.Parent == m.PID && len(p.Args) > 0 && slices.Contains(machine.Components, p.Args[0]) {
				m.Components = append(m.Components, fmt.Sprintf("%s(%d)", p.Args[0], p.PID))
			}
		}
		all = append(all, m)
	}
	return all, nil
}

// DefaultBuild is the build folder of a program in its bin, where setup.sh puts it.
func DefaultBuild() (string, error) {
	program, err := os.Executable()
	if err != nil {
		return "", err
	}
	return canonical(filepath.Dir(filepath.Dir(program)))
}
