package drivertest

import (
	"fmt"
	"io"
	"strings"
)

// Trace tells what the gates of this world, which steps by hand, go through from now on, as agent/gate/testing/replay.cc reads it: an
// agent is a rank, numbered as it started, and has one gate whatever its devices.
func (w *World) Trace(to io.Writer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trace = to
	w.tell("new 0")
}

// tell an event; a trace that cannot be written is cut short, which its reader notices.
func (w *World) tell(format string, args ...any) {
	if w.trace != nil {
		_, _ = fmt.Fprintf(w.trace, format+"\n", args...)
	}
}

// tellWords of a step in which the members among these agents all said "go", and heard each other say it.
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
