package main

import (
	"fmt"

	"tangram.dev/e2e/harness"
)

func mib(bytes uint64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

// line of progress of a local world: rewritten in place on a terminal, one line per flip elsewhere.
type line struct {
	name   string
	staged harness.Event // of the running flip, where most bytes were seen
	said   int           // the last flip that got its line
}

func newLine(name string) *line { return &line{name: name} }

func (l *line) event(e harness.Event) {
	if e.Flip != l.staged.Flip || e.BytesDone >= l.staged.BytesDone && e.BytesTotal > 0 {
		l.staged = e
	}
	phase := e.Phase
	if !terminal.tty {
		if e.Phase != "retire" || e.Flip == l.said {
			return
		}
		l.said, phase = e.Flip, "flipped"
	}
	text := fmt.Sprintf("%-18s flip %d/%d %-6s %-7s %9s of %9s %11s/s", l.name, e.Flip, e.Flips, e.Kind, phase,
		mib(l.staged.BytesDone), mib(l.staged.BytesTotal), mib(uint64(l.staged.Rate)))
	if terminal.tty {
		terminal.show("[demo] " + text)
		return
	}
	say("%s", text)
}

func (l *line) end(r *harness.Record) {
	terminal.stop()
	say("%-18s done: %d flips, %s of expert bytes (bound %s), %s dense, %s KV in %.1f s", l.name, r.PlannedFlips, mib(r.ExpertBytes),
		mib(r.ExpertBoundBytes), mib(r.DenseBytes), mib(r.Bytes.KV), r.TotalSeconds)
}
