// Package clustertest tests clusters on this machine.
package clustertest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"github.com/vishvananda/netlink"

	"tangram.dev/e2e/cluster/host"
)

// mountsOwn is made by the first use of mount(8) on a machine (the kubelet uses it).
const mountsOwn = "/run/mount"

// Snapshot lists the state that a cluster changes on the host, one line per item.
type Snapshot []string

// TakeSnapshot records mounts, sysctls, links, routes, control groups and folders that programs make. Processes and
// namespaces are in Traces, because unrelated ones come and go.
func TakeSnapshot() (Snapshot, error) {
	var all Snapshot
	add := func(kind string, what ...any) { all = append(all, kind+" "+fmt.Sprint(what...)) }
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		add("mount", m.Mountpoint, " ", m.FSType, " ", m.Source, " ", m.Optional)
		if !strings.HasPrefix(m.FSType, "cgroup") {
			continue
		}
		// Only the first level: deeper groups belong to other programs and change any time.
		groups, e := os.ReadDir(m.Mountpoint)
		err = errors.Join(err, e)
		for _, group := range groups {
			if group.IsDir() {
				add("control group", filepath.Join(m.Mountpoint, group.Name()))
			}
		}
	}
	values, e := host.ReadSysctls()
	err = errors.Join(err, e)
	for name, value := range values {
		add("sysctl", name, "=", value)
	}
	links, e := host.Links()
	err = errors.Join(err, e)
	for _, link := range links {
		add("link", link.Attrs().Name, " ", link.Type())
	}
	routes, e := host.Routes(netlink.FAMILY_ALL)
	err = errors.Join(err, e)
	for _, route := range routes {
		add("route", route.String())
	}
	for _, dir := range []string{"/run", "/var/lib", "/var/log", "/opt", "/etc", "/usr/libexec", "/usr/libexec/kubernetes"} {
		entries, e := os.ReadDir(dir)
		if e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
		for _, entry := range entries {
			if path := filepath.Join(dir, entry.Name()); path != mountsOwn {
				add("folder", path)
			}
		}
	}
	slices.Sort(all)
	return all, err
}

// Diff lists additions (+) and removals (-) since before.
func (s Snapshot) Diff(before Snapshot) []string {
	var diff []string
	for _, line := range s {
		if !slices.Contains(before, line) {
			diff = append(diff, "+ "+line)
		}
	}
	for _, line := range before {
		if !slices.Contains(s, line) {
			diff = append(diff, "- "+line)
		}
	}
	return diff
}

// Traces are the namespaces of a cluster's processes, including its pods, and those processes' folders in /proc, which
// outside programs use to reach them.
type Traces map[string]bool

var namespaceKinds = []string{"mnt", "net", "pid", "uts", "ipc"}

// Add records the present namespaces of the descendants of a cluster's supervisors, except those of this process.
func (t Traces) Add(dir string) error {
	processes, err := host.Processes()
	if err != nil {
		return err
	}
	family := map[int]bool{}
	for grown := true; grown; {
		grown = false
		for _, p := range processes {
			d, _, ok := host.ParseSupervisor(p.Args)
			if !family[p.PID] && (ok && d == dir || family[p.Parent]) {
				family[p.PID], grown = true, true
			}
		}
	}
	own := namespaces(os.Getpid())
	for pid := range family {
		t[fmt.Sprintf("/proc/%d", pid)] = true
		for _, ns := range namespaces(pid) {
			if !slices.Contains(own, ns) {
				t[ns] = true
			}
		}
	}
	return nil
}

// namespaces returns a process's namespaces, as `net:[4026531840]`; none if it has ended.
func namespaces(pid int) []string {
	var all []string
	for _, kind := range namespaceKinds {
		if ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind)); err == nil {
			all = append(all, ns)
		}
	}
	return all
}

var procFolder = regexp.MustCompile(`^/proc/\d+`)

// Left lists the processes in one of the namespaces, and those whose command line names the folder or one of the
// cluster's processes, except this program.
func (t Traces) Left(dir string) ([]string, error) {
	processes, err := host.Processes()
	if err != nil {
		return nil, err
	}
	var left []string
	for _, p := range processes {
		if p.PID == os.Getpid() || p.State == 'Z' {
			continue
		}
		in := slices.ContainsFunc(namespaces(p.PID), func(ns string) bool { return t[ns] })
		named := func(arg string) bool { return strings.Contains(arg, dir) || t[procFolder.FindString(arg)] }
		if in || slices.ContainsFunc(p.Args, named) {
			left = append(left, fmt.Sprintf("%d %s", p.PID, strings.Join(p.Args, " ")))
		}
	}
	return left, nil
}
