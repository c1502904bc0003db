package machine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// restartDelay is the delay after a component's end.
const restartDelay = time.Second

// component is a program that a machine keeps running.
type component struct {
	name string
	path string
	args []string // without argv[0], the name
}

// processes is PID 1's work: it starts programs and reaps every process of the namespace, children and orphans alike.
// os/exec would reap only its own children.
type processes struct {
	mutex sync.Mutex
	ended map[int]chan syscall.WaitStatus
}

func newProcesses() *processes {
	p := &processes{ended: map[int]chan syscall.WaitStatus{}}
	children := make(chan os.Signal, 1) // one pending signal is enough: reap collects all ended processes
	signal.Notify(children, syscall.SIGCHLD)
	go func() {
		for range children {
			p.reap()
		}
	}()
	return p
}

func (p *processes) reap() {
	// The lock ensures that a process that ends immediately is registered first.
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if ended, ok := p.ended[pid]; ok {
			delete(p.ended, pid)
			ended <- status
		}
	}
}

// start starts a component with its output appended to a log; the channel delivers its exit status.
func (p *processes) start(c component, logs string) (<-chan syscall.WaitStatus, error) {
	log, err := os.OpenFile(filepath.Join(logs, c.name+".log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644) //nolint:gosec // logs are for everyone
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer func() { _ = null.Close() }()
	ended := make(chan syscall.WaitStatus, 1)
	p.mutex.Lock()
	defer p.mutex.Unlock()
	pid, err := syscall.ForkExec(c.path, append([]string{c.name}, c.args...), &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{null.Fd(), log.Fd(), log.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.path, err)
	}
	p.ended[pid] = ended
	slog.Info("started", "component", c.name, "pid", pid)
	return ended, nil
}

// keep restarts a component until the context ends.
func (p *processes) keep(ctx context.Context, c component, logs string) {
	for {
		ended, err := p.start(c, logs)
		if err != nil {
			slog.Error("does not start", "component", c.name, "error", err)
		} else {
			select {
			case <-ctx.Done():
				return
			case status := <-ended:
				slog.Warn("ended", "component", c.name, "status", status.ExitStatus(), "signal", status.Signal(), "again_in", restartDelay)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(restartDelay):
		}
	}
}

// Components lists the components by name (argv[0]).
var Components = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "containerd", "kubelet", "kube-proxy"}
