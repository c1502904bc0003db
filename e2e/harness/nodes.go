package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// isolated is set in the environment of a process that IsolateNetwork started.
const isolated = "TANGRAM_ISOLATED_NETWORK"

// names is ip(8)'s folder of network namespaces.
const names = "/run/netns"

// IsolateNetwork runs this program again in a separate network, where pods can be nodes (Options.Nodes), without effect
// outside. done: that run ended, with this error. Otherwise the caller is that run and continues. It needs root and
// ip(8).
func IsolateNetwork(ctx context.Context) (done bool, err error) {
	if os.Getenv(isolated) == "" {
		again := exec.CommandContext(ctx, "/proc/self/exe", os.Args[1:]...)
		again.Env = append(os.Environ(), isolated+"=1")
		again.Stdin, again.Stdout, again.Stderr = os.Stdin, os.Stdout, os.Stderr
		again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGTERM}
		again.Cancel = func() error { return again.Process.Signal(syscall.SIGTERM) }
		if err := again.Run(); err != nil {
			return true, fmt.Errorf("in a network of its own (root is needed): %w", err)
		}
		return true, nil
	}
	// Make the mounts of ip(8) for its names, and their mount points, private to this program.
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return false, fmt.Errorf("mounts of its own: %w", err)
	}
	if err := os.MkdirAll(names, 0o750); err != nil {
		return false, err
	}
	if err := syscall.Mount("tmpfs", names, "tmpfs", 0, ""); err != nil {
		return false, fmt.Errorf("mount %s: %w", names, err)
	}
	return false, ip(ctx, "link set lo up", "link add nodes type bridge", "addr add "+nodeAddress(-1)+"/24 dev nodes", "link set nodes up")
}

func nodeName(index int) string    { return fmt.Sprintf("node%d", index) }
func nodeAddress(index int) string { return fmt.Sprintf("10.77.0.%d", 2+index) }

func addNode(ctx context.Context, index int) error {
	name := nodeName(index)
	inside := "-n " + name + " "
	return ip(ctx, "netns add "+name, fmt.Sprintf("link add link%d type veth peer name eth0 netns %s", index, name),
		fmt.Sprintf("link set link%d master nodes up", index), inside+"link set lo up", inside+"addr add "+nodeAddress(index)+"/24 dev eth0",
		inside+"link set eth0 up")
}

// Link brings up or cuts the link of a pod's node. A cut closes no connection.
func (w *World) Link(ctx context.Context, index int, up bool) error {
	return ip(ctx, fmt.Sprintf("link set link%d %s", index, map[bool]string{true: "up", false: "down"}[up]))
}

// ip runs the commands in order.
func ip(ctx context.Context, commands ...string) error {
	for _, c := range commands {
		out, err := exec.CommandContext(ctx, "sh", "-c", "exec ip "+c).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ip %s: %w: %s", c, err, out)
		}
	}
	return nil
}
