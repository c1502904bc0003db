package bench

import (
	"runtime"
	"runtime/debug"
	"slices"

	"golang.org/x/sys/unix"
)

// threadMillis that this thread was on a CPU, to the nanosecond: rusage counts ticks of 4 ms, which is more than
// a plan takes. Other programs that want the core are not in it.
func threadMillis() float64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err) // it cannot fail with these arguments
	}
	return float64(t.Nano()) / 1e6
}

// alone is one goroutine on one thread, without a collector that runs beside it, until the returned function is
// called: what is timed then is the work itself.
func alone() (end func()) {
	cores, percent := runtime.GOMAXPROCS(1), debug.SetGCPercent(-1)
	runtime.LockOSThread()
	return func() {
		runtime.UnlockOSThread()
		debug.SetGCPercent(percent)
		runtime.GOMAXPROCS(cores)
	}
}

// alternating runs the works in turn, `rounds` times after one round that is not counted, and gives the
// milliseconds of the thread that each took, [work][round]. Garbage is collected before each.
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

// over is the median ratio of times that were taken round by round: what slows a machine down for a while slows both.
func over(times, yardstick []float64) float64 {
	ratios := make([]float64, len(times))
	for i := range times {
		ratios[i] = times[i] / yardstick[i]
	}
	return middle(ratios)
}

// middle of values in any order.
func middle(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
