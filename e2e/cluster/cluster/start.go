package cluster

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"tangram.dev/e2e/cluster/host"
	"tangram.dev/e2e/cluster/machine"
)

// started is a running machine.
type started struct {
	spec  *machine.Spec
	pid   int           // of its supervisor, on the host
	ended chan struct{} // closed when it has ended
}

// start starts a machine in separate namespaces and a separate session, so that it outlives this program, and connects
// it to the network.
func start(ctx context.Context, o Options, spec *machine.Spec) (_ *started, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("machine %s: %w", spec.Name, err)
		}
	}()
	groups, err := host.FindCgroups()
	if err != nil {
		return nil, err
	}
	if err := groups.Prepare(spec.Name); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(machineLog(spec), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644) //nolint:gosec // logs are for everyone
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	command := exec.Command(o.program(), host.SupervisorArgs(spec.Dir, spec.Name)...) // it outlives the context
	command.Stdout, command.Stderr, command.Dir = log, log, "/"
	// The caller's environment is not inherited: a proxy, for example, would break the components' connections.
	command.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TMPDIR=" + spec.Home()}
	command.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true, Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWNET,
	}
	// Otherwise files inherited from the caller, such as a lock, would stay open as long as the cluster runs.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return nil, fmt.Errorf("inherited files: %w", err)
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	m := &started{spec: spec, pid: command.Process.Pid, ended: make(chan struct{})}
	go func() {
		_ = command.Wait() // the machine's log has the reason
		close(m.ended)
	}()
	if err := groups.Adopt(spec.Name, spec.Control(), m.pid); err != nil {
		return nil, err
	}
	if err := host.Plug(ctx, spec.Name, m.pid, net.ParseIP(spec.Address())); err != nil {
		select {
		case <-m.ended: // no machine is left to connect
			return nil, m.failure()
		default:
			return nil, err
		}
	}
	return m, nil
}

func machineLog(spec *machine.Spec) string { return filepath.Join(spec.Logs(), "machine.log") }

// watch fails if the machine ends before finished is closed.
func (m *started) watch(ctx context.Context, finished <-chan struct{}) error {
	select {
	case <-m.ended:
		return m.failure()
	case <-finished:
		return nil
	case <-ctx.Done():
		return nil // the code that ended the context reports why
	}
}

// failure returns the last line of the machine's log.
func (m *started) failure() error {
	text, err := os.ReadFile(machineLog(m.spec))
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return errors.Join(fmt.Errorf("machine %s ended: %s", m.spec.Name, lines[len(lines)-1]), err)
}
