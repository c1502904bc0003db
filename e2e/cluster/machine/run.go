package machine

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tangram.dev/e2e/cluster/host"
)

// Run is PID 1 of a machine: it returns at SIGTERM, or if the machine cannot start. The kernel then ends every process
// of the machine.
func Run(dir, name string) error {
	spec, err := ReadSpec(dir, name)
	if err != nil {
		return err
	}
	if os.Getpid() != 1 {
		return fmt.Errorf("machine %s must be process 1 of namespaces of its own; `tangram-cluster up` starts it", name)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := spec.run(ctx); err != nil {
		return fmt.Errorf("machine %s does not start: %w", name, err)
	}
	slog.Info("power off", "machine", name)
	return nil
}

func (s *Spec) run(ctx context.Context) error {
	if err := unix.Sethostname([]byte(s.Name)); err != nil {
		return fmt.Errorf("hostname: %w", err)
	}
	if err := s.isolate(); err != nil {
		return err
	}
	if err := s.connect(ctx); err != nil {
		return err
	}
	processes := newProcesses()
	if s.Control() {
		for _, c := range s.controlPlane() {
			go processes.keep(ctx, c, s.Logs())
		}
		<-ctx.Done()
		return nil
	}
	if err := s.writeConfigs(); err != nil {
		return err
	}
	// The search paths of containerd and runc, CNI plugins and nft.
	for name, value := range map[string]string{
		"PATH":            s.deb("usr/bin") + ":" + s.deb("usr/sbin") + ":" + s.deb("sbin") + ":" + os.Getenv("PATH"),
		"LD_LIBRARY_PATH": Libraries(s.Deb),
	} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	go processes.keep(ctx, s.containerd(), s.Logs())
	// Without containerd the kubelet exits immediately, and restarts only a second later.
	if err := host.Poll(ctx, 20*time.Millisecond, 30*time.Second, func() error {
		return Listens(ctx, "unix", containerdSock)
	}); err != nil {
		return fmt.Errorf("containerd does not listen (see %s): %w", filepath.Join(s.Logs(), "containerd.log"), err)
	}
	// Without the apiserver the retry intervals of both grow. Still, a node may start before the control plane.
	if err := host.Poll(ctx, 20*time.Millisecond, 30*time.Second, func() error {
		return Listens(ctx, "tcp", net.JoinHostPort(ControlAddress, strconv.Itoa(apiserverPort)))
	}); err != nil {
		slog.Warn("no apiserver yet", "error", err)
	}
	go processes.keep(ctx, s.kubelet(), s.Logs())
	go processes.keep(ctx, s.kubeProxy(), s.Logs())
	<-ctx.Done()
	return nil
}

// Listens returns an error if no process listens at an address. A socket's file exists before a process listens on it.
func Listens(ctx context.Context, network, address string) error {
	connection, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, network, address)
	if err != nil {
		return err
	}
	return connection.Close()
}
