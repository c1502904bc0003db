package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// KillForked sends SIGKILL to every process but the first of one container of a pod, by the id that the pod's status tells (containerd://ID).
func KillForked(podUID, containerID string) (int, error) {
	_, id, found := strings.Cut(containerID, "://")
	if !found || id == "" {
		return 0, fmt.Errorf("kill a container of pod %s: %q is not the id of one", podUID, containerID)
	}
	return kill(podUID, id)
}

// isFirst of its namespace of processes, as a container's first one is.
func isFirst(dir string) bool {
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return false // it has ended
	}
	for line := range strings.Lines(string(status)) {
		if ids, found := strings.CutPrefix(line, "NSpid:"); found {
			words := strings.Fields(ids)
			return len(words) > 0 && words[len(words)-1] == "1"
		}
	}
	return false
}

// KillContainers sends SIGKILL to every process of a pod's containers at once, as the kernel
// does when memory runs out; the pod itself stays. It gives the number of processes. The
// nodes are of this machine, so that their processes are seen here.
func KillContainers(podUID string) (int, error) { return kill(podUID, "") }

// kill processes of a pod's containers; of one alone, if it is named, those that did not come first.
func kill(podUID, container string) (int, error) {
	if podUID == "" {
		return 0, fmt.Errorf("kill containers: a pod without UID")
	}
	cgroups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return 0, err
	}
	killed := 0
	for _, file := range cgroups {
		content, err := os.ReadFile(file) // it may have ended meanwhile
		if err != nil || !strings.Contains(string(content), "pod"+podUID) || !strings.Contains(string(content), container) {
			continue
		}
		dir := filepath.Dir(file)
		// The sandbox's own process is no container.
		if comm, err := os.ReadFile(filepath.Join(dir, "comm")); err != nil || strings.TrimSpace(string(comm)) == "pause" {
			continue
		}
		if container != "" && isFirst(dir) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed++
		}
	}
	if killed == 0 {
		return 0, fmt.Errorf("kill containers of pod %s: it has no process here", podUID)
	}
	return killed, nil
}
