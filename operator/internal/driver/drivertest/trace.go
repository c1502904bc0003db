package drivertest

import (
	"fmt"
	"io"
	"strings"
)

// Trace writes the events of this world's gates from now on, in the format of agent/gate/testing/replay.cc. The world
// must be Manual. An agent is a rank, numbered in start order, with one gate for all its devices.
func (w *World) Trace(to io.Writer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trace = to
	w.tell("new 0")
}

// tell writes an event; a write error truncates the trace, which its reader detects.
func (w *World) tell(format string, args ...any) {
	if w.trace != nil {
		_, _ = fmt.Fprintf(w.trace, format+"\n", args...)
	}
}

// tellWords writes a step in which the members among these agents all voted "go" and received each other's votes.
func (w *World) tellWords(in []*Agent) {
	var mask uint64
	words := make([]string, w.started)
	for i := range words {
		words[i] = "0"
	}
	for _, b := range in {
		if b.layout != nil {
			mask |= 1 << b.number
			words[b.number] = "2"
			w.tell("word %d %d 1", b.number, b.attempt)
		}
	}
	for _, b := range in {
		if b.layout != nil {
			w.tell("heard %d 0 %d %s", b.number, mask, strings.Join(words, " "))
			w.tell("go %d", b.number)
		}
	}
}

func flag(is bool) int {
	if is {
		return 1
	}
	return 0
}
