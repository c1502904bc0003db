package harness

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// ProcessorTime that the agents and the engines (or the process that plays them) which live now have used since they were started.
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

// processorTime by the clock that Linux keeps of each process (clock_getcpuclockid(3)).
func (p *process) processorTime() (time.Duration, error) {
	used, err := ProcessorTimeOf(p.pid())
	if err != nil {
		return 0, fmt.Errorf("%s: %w", p.name, err)
	}
	return used, nil
}

// ProcessorTimeOf a process, of all its threads.
func ProcessorTimeOf(pid int) (time.Duration, error) {
	const sched = 2 // CPUCLOCK_SCHED
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|sched), &used); err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return time.Duration(used.Nano()), nil
}

// FrontTime is the processor time that the gateway and the text server which live now have used since they were started.
func (w *World) FrontTime() (gateway, text time.Duration, err error) {
	if gateway, err = w.gateway.processorTime(); err != nil || w.text == nil {
		return gateway, 0, err
	}
	text, err = w.text.processorTime()
	return gateway, text, err
}
