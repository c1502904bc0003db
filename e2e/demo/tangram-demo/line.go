package main

import (
	"fmt"
	"os"

	"tangram.dev/e2e/harness"
)

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, "[demo] "+format+"\n", args...) }

func mib(bytes uint64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

// line of progress: rewritten in place on a terminal, one line per flip elsewhere.
type line struct {
	name   string
	tty    bool
	staged harness.Event // of the running flip, where most bytes were seen
	said   int           // the last flip that got its line
}

func newLine(name string) *line {
	info, err := os.Stderr.Stat()
	return &line{name: name, tty: err == nil && info.Mode()&os.ModeCharDevice != 0}
}

func (l *line) event(e harness.Event) {
	if e.Flip != l.staged.Flip || e.BytesDone >= l.staged.BytesDone && e.BytesTotal > 0 {
		l.staged = e
	}
	phase := e.Phase
	if !l.tty {
		if e.Phase != "retire" || e.Flip == l.said {
			return
		}
		l.said, phase = e.Flip, "flipped"
	}
	text := fmt.Sprintf("%-18s flip %d/%d %-6s %-7s %9s of %9s %11s/s", l.name, e.Flip, e.Flips, e.Kind, phase,
		mib(l.staged.BytesDone), mib(l.staged.BytesTotal), mib(uint64(l.staged.Rate)))
	if l.tty {
		fmt.Fprintf(os.Stderr, "\r\033[K[demo] %s", text)
		return
	}
	say("%s", text)
}

func (l *line) end(r *harness.Record) {
	if l.tty {
		fmt.Fprint(os.Stderr, "\r\033[K")
	}
	say("%-18s done: %d flips, %s of expert bytes (bound %s), %s dense, %s KV in %.1f s", l.name, r.PlannedFlips, mib(r.ExpertBytes),
		mib(r.ExpertBoundBytes), mib(r.DenseBytes), mib(r.Bytes.KV), r.TotalSeconds)
}
