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

// mountsOwn is made by mount(8), whoever uses it first on a machine (the kubelet does).
const mountsOwn = "/run/mount"

// Snapshot of what a cluster changes on the host, as one line for each thing.
type Snapshot []string

// TakeSnapshot of mounts, sysctls, links, routes, control groups and folders that programs make.
// Processes and namespaces are Traces: those of others come and go.
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
		// Of the first level only: what is below others' groups is theirs and changes any time.
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

// Diff gives what came (+) and what went (-) since before.
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

// Traces are the namespaces of a cluster's processes, those of its pods included, and their folders
// in /proc, by which programs outside reach into them.
type Traces map[string]bool

var namespaceKinds = []string{"mnt", "net", "pid", "uts", "ipc"}

// Add the namespaces that the descendants of a cluster's supervisors are in now, but for those of
// this process itself.
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

// namespaces of a process, as `net:[4026531840]`; none of one that ended.
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

// Left gives the processes that are in one of the namespaces, and those whose command line names the
// folder or one of the cluster's processes, other than this program's own.
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
