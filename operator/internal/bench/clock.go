package bench

import (
	"runtime"
	"runtime/debug"
	"slices"

	"golang.org/x/sys/unix"
)

// threadMillis returns the CPU time of this thread, to the nanosecond. rusage counts ticks of 4 ms, which is longer
// than a plan takes. Preemption by other programs does not count.
func threadMillis() float64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err) // it cannot fail with these arguments
	}
	return float64(t.Nano()) / 1e6
}

// alone limits the process to one goroutine on one thread, without garbage collection, until `end` is called. Then only
// the work itself is timed.
func alone() (end func()) {
	cores, percent := runtime.GOMAXPROCS(1), debug.SetGCPercent(-1)
	runtime.LockOSThread()
	return func() {
		runtime.UnlockOSThread()
		debug.SetGCPercent(percent)
		runtime.GOMAXPROCS(cores)
	}
}

// alternating runs the works in turn, `rounds` times after one warm-up round. It returns the thread's milliseconds as
// [work][round]. Garbage is collected before each.
func alternating(rounds int, works ...func() error) ([][]float64, error) {
	out := make([][]float64, len(works))
	for round := range rounds + 1 {
		for i, work := range works {
			runtime.GC()
			begin := threadMillis()
			if err := work(); err != nil {
				return nil, err
			}
			if took := threadMillis() - begin; round > 0 {
				out[i] = append(out[i], took)
			}
		}
	}
	return out, nil
}

// over is the median ratio of times from the same rounds: a temporary slowdown of the machine affects both.
func over(times, yardstick []float64) float64 {
	ratios := make([]float64, len(times))
	for i := range times {
		ratios[i] = times[i] / yardstick[i]
	}
	return middle(ratios)
}

// middle returns the median of values in any order.
func middle(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
