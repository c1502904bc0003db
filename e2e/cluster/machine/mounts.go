package machine

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// MountPoints are fixed paths of programs that a node covers with private folders (the last of /run: Tangram's chart).
// Missing ones are made on the host.
var MountPoints = []string{"/run/containerd", "/run/netns", "/run/tangram-node", "/var/lib/cni", "/var/lib/kubelet", "/var/log"}

// isolate makes the machine's private mounts; it runs in a separate mount namespace.
func (s *Spec) isolate() error {
	// Mounts made here stay private; mounts of the host appear here and, more important, disappear.
	if err := mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return err
	}
	if err := mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	if s.Control() {
		return nil
	}
	// The kubelet passes volumes to containers by propagation. Mounts below are shared, like their parent.
	if err := mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return err
	}
	for _, point := range MountPoints {
		if filepath.Dir(point) == "/run" { // state that a reboot clears
			if err := mount("tmpfs", point, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=711"); err != nil {
				return err
			}
			continue
		}
		private := filepath.Join(s.Home(), filepath.Base(filepath.Dir(point))+"-"+filepath.Base(point))
		if err := os.MkdirAll(private, 0o755); err != nil { //nolint:gosec // pods of any user pass through
			return err
		}
		if err := mount(private, point, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	return nil
}

func mount(source, target, fstype string, flags uintptr, data string) error {
	if err := unix.Mount(source, target, fstype, flags, data); err != nil {
		return fmt.Errorf("mount %s at %s: %w", source, target, err)
	}
	return nil
}
