// Package harness runs a world as processes of this machine.
package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// process is a child with a log and a ready file.
type process struct {
	name, log, ready string
	cmd              *exec.Cmd
	ended            chan struct{}
	err              error // valid after ended is closed
}

// start runs a child that is killed when this process ends.
func start(dir, name, binary string, args ...string) (*process, error) {
	return startWith(nil, dir, name, binary, args...)
}

// startWith is start with additional environment variables.
func startWith(environment []string, dir, name, binary string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), ready: filepath.Join(dir, name+".ready"), ended: make(chan struct{})}
	if err := os.Remove(p.ready); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	p.cmd = exec.Command(binary, args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Env = append(os.Environ(), environment...)
	p.cmd.SysProcAttr = dieWithParent()
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		if p.err = p.cmd.Wait(); p.err == nil {
			p.err = errors.New("exit code 0")
		}
		close(p.ended)
	}()
	return p, nil
}

// The imports of an engine with torch and vLLM take 12 s on an idle machine.
const startLimit = 3 * time.Minute

// waitReady reads the ready file as soon as it exists.
func (p *process) waitReady(ctx context.Context, into any) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		wire, err := os.ReadFile(p.ready)
		if err == nil {
			return json.Unmarshal(wire, into)
		}
		select {
		case <-p.ended:
			return fmt.Errorf("%s ended before it was ready (%w); the end of %s:\n%s", p.name, p.err, p.log, tail(p.log, 20))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w; the end of %s:\n%s", p.name, ctx.Err(), p.log, tail(p.log, 20))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func tail(path string, lines int) string {
	wire, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(wire)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// stop sends SIGTERM, then kills.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	p.wake()
	select {
	case <-p.ended:
	case <-time.After(5 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// hang stops the process without closing anything; wake continues it.
func (p *process) hang() { p.signal(syscall.SIGSTOP) }
func (p *process) wake() { p.signal(syscall.SIGCONT) }

// signal sends a signal to the worker process (pid).
func (p *process) signal(s syscall.Signal) { _ = syscall.Kill(p.pid(), s) } // it may have ended already

// pid is the worker process: the child, or the process that the child forked for the work, named in its ready file.
func (p *process) pid() int {
	var ready struct {
		Pid int `json:"pid"`
	}
	if wire, err := os.ReadFile(p.ready); err == nil && json.Unmarshal(wire, &ready) == nil && ready.Pid > 0 {
		return ready.Pid
	}
	return p.cmd.Process.Pid
}

// kill kills immediately; this process's own end is covered by the parent death signal. The child runs no more, but on
// a busy machine the kernel may need seconds to remove it (ended).
func (p *process) kill() { _ = p.cmd.Process.Kill() } // it may have ended already

// remove kills the process and waits until its resources, such as ports, are released.
func (p *process) remove() {
	p.kill()
	<-p.ended
}

func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// logFile is a log that is opened for each write and appended to.
type logFile struct{ path string }

func (f *logFile) Write(b []byte) (int, error) {
	out, err := os.OpenFile(f.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { _ = out.Close() }()
	return out.Write(b)
}
