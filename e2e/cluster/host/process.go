// Package host makes and undoes a cluster's changes of its machine.
package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sys/unix"
)

// Process is a process of the host, as in /proc.
type Process struct {
	PID, Parent int
	Args        []string // argv; empty for a zombie and for a kernel thread
	State       byte     // R, S, D, Z, ...
}

// Supervisor is the supervisor process of a machine; its command line is `tangram-cluster machine --dir DIR --name
// NAME`.
type Supervisor struct {
	PID       int
	Dir, Name string
}

// MachineCommand is the first argument of a supervisor.
const MachineCommand = "machine"

// SupervisorArgs returns the arguments after the program's name.
func SupervisorArgs(dir, name string) []string {
	return []string{MachineCommand, "--dir", dir, "--name", name}
}

// ParseSupervisor reports whether a command line is that of a supervisor.
func ParseSupervisor(args []string) (dir, name string, ok bool) {
	if len(args) != 6 || filepath.Base(args[0]) != "tangram-cluster" || !slices.Equal(args[1:], SupervisorArgs(args[3], args[5])) {
		return "", "", false
	}
	return args[3], args[5], true
}

// Processes lists the host's processes.
func Processes() ([]Process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var all []Process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if p, err := process(pid); err == nil { // otherwise it has ended in the meantime
			all = append(all, p)
		}
	}
	return all, nil
}

func process(pid int) (Process, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return Process{}, err
	}
	// pid (comm) state ppid ...; comm may contain blanks and parentheses.
	end := bytes.LastIndexByte(stat, ')')
	fields := strings.Fields(string(stat[end+1:]))
	if end < 0 || len(fields) < 2 {
		return Process{}, fmt.Errorf("%s/stat reads %q", dir, stat)
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return Process{}, err
	}
	p := Process{PID: pid, Parent: parent, State: fields[0][0]}
	cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil {
		return Process{}, err
	}
	if text := strings.TrimSuffix(string(cmdline), "\x00"); text != "" {
		p.Args = strings.Split(text, "\x00")
	}
	return p, nil
}

// Supervisors lists the running supervisors of all clusters.
func Supervisors() ([]Supervisor, error) {
	all, err := Processes()
	if err != nil {
		return nil, err
	}
	var found []Supervisor
	for _, p := range all {
		if dir, name, ok := ParseSupervisor(p.Args); ok {
			found = append(found, Supervisor{PID: p.PID, Dir: dir, Name: name})
		}
	}
	return found, nil
}

// errAlive means that the awaited end has not happened.
var errAlive = errors.New("still there")

// Kill ends a supervisor and all processes in its namespaces, and waits for their end: SIGTERM first if grace is
// positive.
func (s Supervisor) Kill(ctx context.Context, grace time.Duration) error {
	// A descriptor, because the PID may be reused in the meantime.
	handle, err := unix.PidfdOpen(s.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil // it has ended in the meantime
	}
	if err != nil {
		return fmt.Errorf("machine %s, process %d: %w", s.Name, s.PID, err)
	}
	defer func() { _ = unix.Close(handle) }()
	again, err := process(s.PID)
	switch {
	case err != nil, again.State == 'Z':
		return nil
	case len(again.Args) == 0: // it is ending, and its command line is gone
	case !s.is(again):
		return nil // the PID belongs to another process
	default:
		if grace > 0 && unix.PidfdSendSignal(handle, unix.SIGTERM, nil, 0) == nil && ended(ctx, handle, grace) == nil {
			return nil
		}
		if err := unix.PidfdSendSignal(handle, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("machine %s, process %d: %w", s.Name, s.PID, err)
		}
	}
	if err := ended(ctx, handle, 30*time.Second); err != nil {
		return fmt.Errorf("machine %s, process %d, does not end: %w", s.Name, s.PID, err)
	}
	return nil
}

func (s Supervisor) is(p Process) bool {
	dir, name, ok := ParseSupervisor(p.Args)
	return ok && dir == s.Dir && name == s.Name
}

// ended waits for the end of PID 1 of a namespace, which the kernel reports only after all other processes of the
// namespace ended. Its command line disappears earlier, when its first thread ends, while others may still run.
func ended(ctx context.Context, handle int, limit time.Duration) error {
	return Poll(ctx, 0, limit, func() error {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}}, 100)
		if err == nil && n == 0 {
			err = errAlive
		}
		return err
	})
}

// Poll calls look every interval until it returns no error, for at most limit; then it returns the last error.
func Poll(ctx context.Context, interval, limit time.Duration, look func() error) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) { return struct{}{}, look() },
		backoff.WithBackOff(backoff.NewConstantBackOff(interval)), backoff.WithMaxElapsedTime(limit))
	return err
}
