package harness

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Resident is the resident memory of a process and its descendants; shared pages count proportionally (Pss of
// smaps_rollup, proc(5)).
type Resident struct {
	Shared uint64 // in named memory: an agent's weights and KV
	Others uint64
}

// Resident returns the resident memory of the running agents and of the running engines.
func (w *World) Resident() (agents, engines Resident, err error) {
	for _, p := range w.all() {
		for i, process := range p.living() {
			of := &engines
			if i == 0 {
				of = &agents
			}
			if err := of.add(process.cmd.Process.Pid); err != nil {
				return agents, engines, err
			}
		}
	}
	return agents, engines, nil
}

// ResidentBelow is the resident memory of all running descendants of this process: worlds (also while they start),
// their gateways and drivers. A process that ends meanwhile counts as 0.
func ResidentBelow() (out Resident, err error) {
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return out, err
	}
	for _, file := range tasks {
		children, err := os.ReadFile(file)
		if gone(err) {
			continue
		} else if err != nil {
			return out, err
		}
		for _, child := range strings.Fields(string(children)) {
			id, err := strconv.Atoi(child)
			if err != nil {
				return out, err
			}
			if err := out.add(id); err != nil && !gone(err) {
				return out, err
			}
		}
	}
	return out, nil
}

func gone(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// ResidentOf returns the resident memory of a process and its children.
func ResidentOf(pid int) (out Resident, err error) { return out, out.add(pid) }

func (r *Resident) add(pid int) error {
	file, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // read only
	for lines := bufio.NewScanner(file); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) != 3 || words[2] != "kB" {
			continue
		}
		kib, err := strconv.ParseUint(words[1], 10, 64)
		if err != nil {
			return fmt.Errorf("%s: %w", file.Name(), err)
		}
		switch words[0] {
		case "Pss:":
			r.Others += kib << 10
		case "Pss_Shmem:":
			r.Others -= kib << 10
			r.Shared += kib << 10
		}
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return err
	}
	for _, child := range strings.Fields(string(children)) {
		id, err := strconv.Atoi(child)
		if err != nil {
			return err
		}
		if err := r.add(id); err != nil {
			return err
		}
	}
	return nil
}
