package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// isolated says to a process that IsolateNetwork has started it.
const isolated = "TANGRAM_ISOLATED_NETWORK"

// names of network namespaces, where ip(8) keeps them.
const names = "/run/netns"

// IsolateNetwork runs this very program again, in a network of its own, where pods can be nodes (Options.Nodes) and nothing
// outside is touched. done: that has happened, with this outcome; else this is that program, and goes on. It needs root and ip(8).
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
	// What ip(8) mounts for its names, and the files that it mounts them on, are this program's alone.
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

// Link of a pod's node: up, or cut. No connection over it is closed.
func (w *World) Link(ctx context.Context, index int, up bool) error {
	return ip(ctx, fmt.Sprintf("link set link%d %s", index, map[bool]string{true: "up", false: "down"}[up]))
}

// ip runs one command after the other.
func ip(ctx context.Context, commands ...string) error {
	for _, c := range commands {
		out, err := exec.CommandContext(ctx, "sh", "-c", "exec ip "+c).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ip %s: %w: %s", c, err, out)
		}
	}
	return nil
}
