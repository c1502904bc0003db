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
	const sched = 2 // CPUCLOCK_SCHED, of all threads
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^p.pid()<<3|sched), &used); err != nil {
		return 0, fmt.Errorf("processor time of %s: %w", p.name, err)
	}
	return time.Duration(used.Nano()), nil
}
