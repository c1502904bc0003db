package harness

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// ProcessorTime returns the processor time of the running agents and of the running engines (or the stub process),
// since their start.
func (w *World) ProcessorTime() (agents, engines time.Duration, err error) {
	for _, p := range w.all() {
		for i, process := range p.living() {
			used, err := process.processorTime()
			if err != nil {
				return 0, 0, err
			}
			if i == 0 {
				agents += used
			} else {
				engines += used
			}
		}
	}
	if w.stub != nil {
		if engines, err = w.stub.processorTime(); err != nil {
			return 0, 0, err
		}
	}
	return agents, engines, nil
}

// processorTime reads Linux's clock of the process (clock_getcpuclockid(3)).
func (p *process) processorTime() (time.Duration, error) {
	used, err := ProcessorTimeOf(p.pid())
	if err != nil {
		return 0, fmt.Errorf("%s: %w", p.name, err)
	}
	return used, nil
}

// ProcessorTimeOf returns the processor time of all threads of a process.
func ProcessorTimeOf(pid int) (time.Duration, error) {
	const sched = 2 // CPUCLOCK_SCHED
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|sched), &used); err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return time.Duration(used.Nano()), nil
}

// FrontTime returns the processor time of the running gateway and of the running text server, since their start.
func (w *World) FrontTime() (gateway, text time.Duration, err error) {
	if gateway, err = w.gateway.processorTime(); err != nil || w.text == nil {
		return gateway, 0, err
	}
	text, err = w.text.processorTime()
	return gateway, text, err
}
