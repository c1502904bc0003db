// Package host holds what a cluster changes on the machine it runs on, and puts it back.
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
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Process of the host, as /proc tells it.
type Process struct {
	PID, Parent int
	Args        []string // argv; empty of a zombie and of a kernel thread
	State       byte     // R, S, D, Z, ...
}

// Supervisor of a machine is a process whose command line is
// `tangram-cluster machine --dir DIR --name NAME`.
type Supervisor struct {
	PID       int
	Dir, Name string
}

// MachineCommand is the first argument of a supervisor.
const MachineCommand = "machine"

// SupervisorArgs that follow the program's name.
func SupervisorArgs(dir, name string) []string {
	return []string{MachineCommand, "--dir", dir, "--name", name}
}

// ParseSupervisor tells whether a command line is that of a supervisor.
func ParseSupervisor(args []string) (dir, name string, ok bool) {
	if len(args) != 6 || filepath.Base(args[0]) != "tangram-cluster" || !slices.Equal(args[1:], SupervisorArgs(args[3], args[5])) {
		return "", "", false
	}
	return args[3], args[5], true
}

// Processes of the host.
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
		if p, err := process(pid); err == nil { // else it has ended meanwhile
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
	// pid (comm) state ppid ...; comm may hold blanks and parentheses.
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

// Supervisors that run now, of all clusters.
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

// errAlive is what Kill waits for the end of.
var errAlive = errors.New("still there")

// Kill ends a supervisor and everything in its namespaces, and waits until they are gone: SIGTERM
// first if grace is positive. The kernel lets go of PID 1 only after all others of its namespace.
func (s Supervisor) Kill(ctx context.Context, grace time.Duration) error {
	// A descriptor, so that a PID used again meanwhile is never hit.
	handle, err := os.FindProcess(s.PID)
	if err != nil {
		return err
	}
	defer func() { _ = handle.Release() }()
	if again, err := process(s.PID); err != nil || !s.is(again) {
		return nil // it has ended between the look and now
	}
	if grace > 0 && handle.Signal(syscall.SIGTERM) == nil && s.wait(ctx, grace) == nil {
		return nil
	}
	if err := handle.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("machine %s, process %d: %w", s.Name, s.PID, err)
	}
	if err := s.wait(ctx, 30*time.Second); err != nil {
		return fmt.Errorf("machine %s, process %d, does not end: %w", s.Name, s.PID, err)
	}
	return nil
}

func (s Supervisor) is(p Process) bool {
	dir, name, ok := ParseSupervisor(p.Args)
	return ok && dir == s.Dir && name == s.Name
}

func (s Supervisor) wait(ctx context.Context, limit time.Duration) error {
	return Poll(ctx, 10*time.Millisecond, limit, func() error {
		// A zombie is gone but for its exit status, which its parent may never ask for.
		if p, err := process(s.PID); err == nil && p.State != 'Z' && s.is(p) {
			return errAlive
		}
		return nil
	})
}

// Poll until look gives no error, every interval for at most limit; then its last error.
func Poll(ctx context.Context, interval, limit time.Duration, look func() error) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) { return struct{}{}, look() },
		backoff.WithBackOff(backoff.NewConstantBackOff(interval)), backoff.WithMaxElapsedTime(limit))
	return err
}
