package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
)

// groupPrefix starts the names of machines' control groups: /tangram-n1 has n1's pods and n1's own processes.
const groupPrefix = "tangram-"

// Group is the control group of a machine.
func Group(machine string) string { return groupPrefix + machine }

// The controllers that the kubelet and runc need.
var (
	controllersV1 = []string{"cpu", "cpuacct", "cpuset", "memory", "pids", "devices", "freezer", "blkio"}
	controllersV2 = []string{"cpu", "cpuset", "memory", "pids"}
)

// Cgroups are the control groups of the host. In v1 (also next to a v2 mount without controllers, "hybrid") each
// hierarchy has a separate folder; v2 has one folder.
type Cgroups struct {
	V2    bool
	roots []hierarchy // v1's or v2's
	named []string    // v2 next to v1: runc makes groups there, too
}

type hierarchy struct {
	path        string
	controllers []string // empty: a named hierarchy, like systemd's
}

// FindCgroups finds the mounted control groups.
func FindCgroups() (Cgroups, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return Cgroups{}, fmt.Errorf("control groups: %w", err)
	}
	return cgroupsOf(mounts)
}

func cgroupsOf(mounts []*mountinfo.Info) (Cgroups, error) {
	var c Cgroups
	var unified []hierarchy
	for _, m := range mounts {
		if m.FSType == "cgroup2" {
			words, err := readWords(filepath.Join(m.Mountpoint, "cgroup.controllers"))
			if err != nil {
				return Cgroups{}, fmt.Errorf("control groups v2: %w", err)
			}
			unified = append(unified, hierarchy{m.Mountpoint, words})
			continue
		}
		h := hierarchy{path: m.Mountpoint}
		for option := range strings.SplitSeq(m.VFSOptions, ",") {
			if slices.Contains(controllersV1, option) {
				h.controllers = append(h.controllers, option)
			}
		}
		c.roots = append(c.roots, h)
	}
	c.V2 = len(c.roots) == 0
	for _, h := range unified {
		if c.V2 && len(c.roots) == 0 {
			c.roots = append(c.roots, h)
		} else if !c.V2 {
			c.named = append(c.named, h.path)
		}
	}
	return c, nil
}

func readWords(path string) ([]string, error) {
	text, err := os.ReadFile(path)
	return strings.Fields(string(text)), err
}

// Missing lists the controllers that nodes need and the host lacks.
func (c Cgroups) Missing() []string {
	if len(c.roots) == 0 {
		return []string{"control groups: neither v1 nor v2 is mounted under /sys/fs/cgroup"}
	}
	needed, version := controllersV1, "v1"
	if c.V2 {
		needed, version = controllersV2, "v2"
	}
	var missing []string
	for _, controller := range needed {
		at := slices.IndexFunc(c.roots, func(h hierarchy) bool { return slices.Contains(h.controllers, controller) })
		switch {
		case at < 0:
			missing = append(missing, fmt.Sprintf("control groups %s: controller %s is not there", version, controller))
		case syscall.Access(c.roots[at].path, 2) != nil:
			missing = append(missing, fmt.Sprintf("control groups %s: %s (controller %s) is not writable", version, c.roots[at].path, controller))
		}
	}
	return missing
}

// Disabled lists the controllers that v2 does not delegate to groups below the root; Enable delegates them, and Disable
// reverts that.
func (c Cgroups) Disabled() ([]string, error) {
	if !c.V2 {
		return nil, nil
	}
	enabled, err := readWords(filepath.Join(c.roots[0].path, "cgroup.subtree_control"))
	if err != nil {
		return nil, fmt.Errorf("control groups v2: %w", err)
	}
	return slices.DeleteFunc(slices.Clone(controllersV2), func(name string) bool { return slices.Contains(enabled, name) }), nil
}

// Enable delegates controllers (v2) to the groups below the root.
func (c Cgroups) Enable(controllers []string) error { return c.subtree("", "+", controllers) }

// Disable is the reverse of Enable.
func (c Cgroups) Disable(controllers []string) error { return c.subtree("", "-", controllers) }

func (c Cgroups) subtree(group, sign string, controllers []string) error {
	if !c.V2 || len(controllers) == 0 {
		return nil
	}
	file := filepath.Join(c.roots[0].path, group, "cgroup.subtree_control")
	if err := os.WriteFile(file, []byte(sign+strings.Join(controllers, " "+sign)), 0); err != nil {
		return fmt.Errorf("controllers %s%v in %s: %w (a group that holds processes itself cannot; "+
			"run in the root of a control group namespace without processes in it)", sign, controllers, file, err)
	}
	return nil
}

// Prepare makes the group of a node in every hierarchy.
func (c Cgroups) Prepare(node string) error {
	for _, h := range c.roots {
		dir := filepath.Join(h.path, Group(node))
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // as others there
			return fmt.Errorf("control group: %w", err)
		}
		if c.V2 || !slices.Contains(h.controllers, "cpuset") {
			continue
		}
		// A new cpuset has neither CPUs nor memory, and then accepts no process.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(h.path, file))
			if err != nil {
				return fmt.Errorf("control group: %w", err)
			}
			if err := os.WriteFile(filepath.Join(dir, file), value, 0); err != nil {
				return fmt.Errorf("control group: %w", err)
			}
		}
	}
	return c.subtree(Group(node), "+", controllersV2)
}

// Adopt moves a machine's supervisor, and so its children, to a group next to the machine's pods: in v2 a group with
// child groups has no processes. In v1 only processors are shared this way. Under full load, a control plane gets a
// quarter of a node's share, and a node's kubelet and containerd an eighth of its pods' share (v2: a third). A thread
// in the root group would count as much as all pods of a node, and in a real cluster a control plane has its own
// processors.
func (c Cgroups) Adopt(machine string, control bool, pid int) error {
	for _, h := range c.roots {
		if !slices.Contains(h.controllers, "cpu") {
			continue
		}
		group := filepath.Join(h.path, Group(machine))
		dir := filepath.Join(group, "supervisor")
		if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // as others there
			return fmt.Errorf("control group: %w", err)
		}
		behind, file, weight := dir, "cpu.shares", "256" // of 1024; pods of a node of two processors have 2048
		if control {
			behind = group
		}
		if c.V2 {
			file, weight = "cpu.weight", "25" // of 100
		}
		for path, value := range map[string]string{filepath.Join(behind, file): weight, filepath.Join(dir, "cgroup.procs"): strconv.Itoa(pid)} {
			if err := os.WriteFile(path, []byte(value), 0); err != nil {
				return fmt.Errorf("control group: %w", err)
			}
		}
	}
	return nil
}

// Remove removes all machines' groups with their child groups. Their processes are gone or ending.
func (c Cgroups) Remove(ctx context.Context) error {
	var failed error
	roots := slices.Clone(c.named)
	for _, h := range c.roots {
		roots = append(roots, h.path)
	}
	for _, root := range roots {
		nodes, err := filepath.Glob(filepath.Join(root, Group("n[0-9]*")))
		failed = errors.Join(failed, err)
		control, err := filepath.Glob(filepath.Join(root, Group("cp")))
		failed = errors.Join(failed, err)
		tops := slices.Concat(nodes, control)
		for _, top := range tops {
			failed = errors.Join(failed, removeGroup(ctx, top))
		}
	}
	return failed
}

func removeGroup(ctx context.Context, top string) error {
	var dirs []string
	if err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		return ignoreGone(err)
	}); err != nil {
		return fmt.Errorf("control group: %w", err)
	}
	for _, dir := range slices.Backward(dirs) { // children follow their parents
		// The kernel releases a group a little after its last process ended (EBUSY until then).
		if err := Poll(ctx, 20*time.Millisecond, 10*time.Second, func() error { return ignoreGone(syscall.Rmdir(dir)) }); err != nil {
			return fmt.Errorf("control group %s: %w", dir, err)
		}
	}
	return nil
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
