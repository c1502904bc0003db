// Package cluster runs a Kubernetes cluster on this machine and removes it.
package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"tangram.dev/e2e/cluster/host"
	"tangram.dev/e2e/cluster/machine"
)

// Options of a cluster. Dir and Build must be set.
type Options struct {
	Dir   string // folder of the state; made by Up, removed by Down
	Build string // output of setup.sh: bin, deb, cluster-images
	Nodes int    // 0 selects two
	// MemoryPerNode (bytes) limits each node's pods; 0: half of the machine's memory, less the kubelet's eviction
	// threshold. CPUs are the machine's.
	MemoryPerNode int64
	Images        []string // archives to load
	Say           func(format string, args ...any)
}

// evictionReserve is the memory of the kubelet's eviction threshold, which pods cannot use (kubelet.yaml).
const evictionReserve = 200 << 20

func (o *Options) kube() string    { return filepath.Join(o.Build, "bin/kube") }
func (o *Options) program() string { return filepath.Join(o.Build, "bin/tangram-cluster") }
func (o *Options) deb() string     { return filepath.Join(o.Build, "deb") }
func (o *Options) ctr() string     { return filepath.Join(o.deb(), "usr/bin/ctr") }
func (o *Options) pause() string   { return filepath.Join(o.Build, "cluster-images/pause.tar") }

// complete sets defaults and makes paths absolute, without links: the folder identifies the cluster.
func (o *Options) complete() (err error) {
	if o.Dir == "" {
		return errors.New("the cluster's folder is not given")
	}
	if o.Dir, err = canonical(o.Dir); err != nil {
		return fmt.Errorf("folder %s: %w", o.Dir, err)
	}
	if o.Build, err = canonical(o.Build); err != nil {
		return fmt.Errorf("folder %s: %w", o.Build, err)
	}
	if o.Nodes == 0 {
		o.Nodes = 2
	}
	if o.Say == nil {
		o.Say = func(string, ...any) {}
	}
	return nil
}

// canonical resolves a path whose last parts may not exist yet.
func canonical(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, os.ErrNotExist) && path != "/" {
		parent, err := canonical(filepath.Dir(path))
		return filepath.Join(parent, filepath.Base(path)), err
	}
	return real, err
}

// Preflight reports together all reasons why a cluster cannot run here.
func (o *Options) Preflight() error {
	var missing []string
	add := func(format string, args ...any) { missing = append(missing, fmt.Sprintf(format, args...)) }
	if os.Geteuid() != 0 {
		add("run it as root: it makes namespaces, mounts and control groups")
	}
	for _, file := range []string{o.kube(), o.program(), o.ctr(), o.pause(), filepath.Join(o.deb(), "usr/bin/containerd"),
		filepath.Join(o.deb(), "usr/sbin/runc"), filepath.Join(o.deb(), "usr/sbin/nft"), filepath.Join(o.deb(), "usr/lib/cni/bridge")} {
		if _, err := os.Stat(file); err != nil {
			add("%s is missing: run e2e/cluster/setup.sh", file)
		}
	}
	for _, image := range o.Images {
		if _, err := os.Stat(image); err != nil {
			add("image: %v", err)
		}
	}
	// Opening a context loads the kernel module if there is one.
	if fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC); err == nil {
		_ = unix.Close(fd)
	} else if os.Geteuid() == 0 {
		add("the kernel has no overlay file system: %v", err)
	}
	if groups, err := host.FindCgroups(); err != nil {
		add("%v", err)
	} else {
		missing = append(missing, groups.Missing()...)
	}
	if o.Nodes < 1 || o.Nodes > machine.MaxNodes {
		add("%d nodes: want 1 to %d", o.Nodes, machine.MaxNodes)
	}
	if _, err := o.reserved(); err != nil {
		add("%v", err)
	}
	for _, point := range machine.MountPoints {
		if strings.HasPrefix(o.Dir+"/", point+"/") || strings.HasPrefix(o.Build+"/", point+"/") {
			add("nodes do not see what is under %s: choose another folder than %s", point, o.Dir)
		}
	}
	if len(o.Dir) > 200 {
		add("the folder's path has %d bytes, over 200 (it is the alias of the bridge): %s", len(o.Dir), o.Dir)
	}
	if _, ours, err := host.BridgeOwner(); err == nil && !ours {
		found, err := host.Overlaps(machine.Network(machine.MachineNetwork), machine.Network(machine.PodNetwork))
		if err != nil {
			add("%v", err)
		}
		missing = append(missing, found...)
	}
	if len(missing) > 0 {
		return fmt.Errorf("a cluster cannot run here:\n  - %s", strings.Join(missing, "\n  - "))
	}
	return nil
}

// reserved is a node's memory to reserve so that pods get MemoryPerNode.
func (o *Options) reserved() (int64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("memory of the machine: %w", err)
	}
	return reserve(int64(info.Totalram)*int64(info.Unit), o.MemoryPerNode)
}

func reserve(total, perNode int64) (int64, error) {
	if perNode == 0 {
		return total / 2, nil
	}
	if perNode < 0 || perNode > total-evictionReserve {
		return 0, fmt.Errorf("memory per node %d MiB: this machine has %d MiB, of which %d are never given to pods",
			perNode>>20, total>>20, int64(evictionReserve)>>20)
	}
	return total - evictionReserve - perNode, nil
}
