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
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sys/unix"
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

// errAlive is what is waited for the end of.
var errAlive = errors.New("still there")

// Kill ends a supervisor and everything in its namespaces, and waits until they are gone: SIGTERM first if grace is positive.
func (s Supervisor) Kill(ctx context.Context, grace time.Duration) error {
	// A descriptor, so that a PID used again meanwhile is never hit.
	handle, err := unix.PidfdOpen(s.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil // it has ended since it was found
	}
	if err != nil {
		return fmt.Errorf("machine %s, process %d: %w", s.Name, s.PID, err)
	}
	defer func() { _ = unix.Close(handle) }()
	again, err := process(s.PID)
	switch {
	case err != nil, again.State == 'Z':
		return nil
	case len(again.Args) == 0: // it is ending, and has no command line any more
	case !s.is(again):
		return nil // another's by now
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

// ended waits for the end of a process that is PID 1 of its namespace, which the kernel tells only when all others of the namespace are gone. Its
// command line goes earlier: as soon as its first thread has ended, while the others of the namespace may still run.
func ended(ctx context.Context, handle int, limit time.Duration) error {
	return Poll(ctx, 0, limit, func() error {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}}, 100)
		if err == nil && n == 0 {
			err = errAlive
		}
		return err
	})
}

// Poll until look gives no error, every interval for at most limit; then its last error.
func Poll(ctx context.Context, interval, limit time.Duration, look func() error) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) { return struct{}{}, look() },
		backoff.WithBackOff(backoff.NewConstantBackOff(interval)), backoff.WithMaxElapsedTime(limit))
	return err
}
