package cluster

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// snapshot is the state that a cluster changes on its machine.
type snapshot map[string]string // kind and name: value

// takeSnapshot records mounts, links, routes, cgroups, the sysctls that a kubelet sets, and processes that name the
// cluster's folder.
func takeSnapshot() (snapshot, error) {
	s := snapshot{}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		s["mount "+strings.Fields(line)[4]] = ""
	}
	links, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		s["link "+l.Name] = ""
	}
	routes, err := os.ReadFile("/proc/net/route")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(routes)) {
		s["route "+strings.Join(strings.Fields(line)[:3], " ")] = ""
	}
	for _, name := range []string{"vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops"} {
		value, err := os.ReadFile(filepath.Join("/proc/sys", name))
		if err != nil {
			return nil, err
		}
		s["sysctl "+name] = strings.TrimSpace(string(value))
	}
	// Only the first level of each hierarchy: deeper groups belong to other programs and change any time.
	groups := "/sys/fs/cgroup/*/*"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil { // version 2: one hierarchy
		groups = "/sys/fs/cgroup/*"
	}
	paths, err := filepath.Glob(groups)
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			s["cgroup "+path] = ""
		}
	}
	return s, s.processes()
}

func (s snapshot) processes() error {
	state, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, path := range lines {
		line, err := os.ReadFile(path)
		if text := strings.ReplaceAll(string(line), "\x00", " "); err == nil && strings.Contains(text, state) {
			s["process "+text] = ""
		}
	}
	return nil
}

// leftSince lists additions and changed values that last for a few seconds: what a cluster used may end a little later.
func leftSince(before snapshot) []string {
	var left []string
	for range 20 {
		now, err := takeSnapshot()
		if err != nil {
			return []string{err.Error()}
		}
		left = left[:0]
		for what, value := range now {
			if old, known := before[what]; !known {
				left = append(left, what)
			} else if old != value {
				left = append(left, what+" is "+value+", was "+old)
			}
		}
		if len(left) == 0 {
			return nil
		}
		time.Sleep(250 * time.Millisecond)
	}
	slices.Sort(left)
	return left
}

// The check itself must detect this running cluster.
func TestSnapshotDetectsCluster(t *testing.T) {
	now, err := takeSnapshot()
	require.NoError(t, err)
	kinds := map[string]bool{}
	for what := range now {
		kind, name, _ := strings.Cut(what, " ")
		// Any machine has control groups; those of the cluster's machines are named tangram-MACHINE (e2e/cluster/host).
		kinds[kind] = kinds[kind] || kind != "cgroup" || strings.HasPrefix(filepath.Base(name), "tangram-")
	}
	require.True(t, kinds["process"], "no process names %s", dir)
	require.True(t, kinds["link"] && kinds["route"] && kinds["mount"] && kinds["cgroup"], "%v", kinds)
	require.NotEmpty(t, leftSince(snapshot{"sysctl kernel/panic": "another"}))
}
