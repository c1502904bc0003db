package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// KillForked sends SIGKILL to every process except the first of one container of a pod; containerID is from the pod's
// status (containerd://ID).
func KillForked(podUID, containerID string) (int, error) {
	_, id, found := strings.Cut(containerID, "://")
	if !found || id == "" {
		return 0, fmt.Errorf("kill a container of pod %s: %q is not the id of one", podUID, containerID)
	}
	return kill(podUID, id)
}

// isFirst reports whether the process is the first of its PID namespace, like a container's first process.
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

// KillContainers sends SIGKILL to every process of a pod's containers together, like the kernel when memory runs out;
// the pod itself stays. It returns the number of processes. The nodes run on this machine, so their processes are
// visible here.
func KillContainers(podUID string) (int, error) { return kill(podUID, "") }

// kill kills processes of a pod's containers. If a container is named: only its processes except the first.
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
		content, err := os.ReadFile(file) // the process may have ended
		if err != nil || !strings.Contains(string(content), "pod"+podUID) || !strings.Contains(string(content), container) {
			continue
		}
		dir := filepath.Dir(file)
		// The sandbox's process belongs to no container.
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
