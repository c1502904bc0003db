package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// screen shows progress: permanent lines, and on a terminal a few redrawn lines below them.
type screen struct {
	tty  bool
	cols func() int

	mu   sync.Mutex
	out  io.Writer
	live []string // the redrawn lines
}

const longStep = 15 * time.Second // between progress lines of a long step

var terminal = newScreen(os.Stderr)

func newScreen(f *os.File) *screen {
	return &screen{out: f, tty: term.IsTerminal(int(f.Fd())), cols: func() int {
		if cols, _, err := term.GetSize(int(f.Fd())); err == nil && cols > 0 {
			return cols
		}
		return 80
	}}
}

var began = time.Now()

// prefix of each line of progress: the seconds since the start.
func prefix() string { return fmt.Sprintf("[demo %4.0f s] ", time.Since(began).Seconds()) }

func say(format string, args ...any) { terminal.say(prefix() + fmt.Sprintf(format, args...)) }

// during reports the progress of a long step: on a terminal in place, elsewhere a line from time to time, unless brief.
func during(brief bool, progress func() string) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		every := longStep
		if terminal.tty {
			every = redraw
		}
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-done:
				terminal.stop()
				return
			case <-tick.C:
				if terminal.tty {
					terminal.show(prefix() + progress())
				} else if !brief {
					say("%s", progress())
				}
			}
		}
	}()
	return func() { close(done); <-ended }
}

// say prints a permanent line.
func (s *screen) say(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	live := s.live
	s.draw(nil, text+"\n")
	s.draw(live, "")
}

// show replaces the redrawn lines; on a terminal only.
func (s *screen) show(lines ...string) {
	if !s.tty {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draw(lines, "")
}

// stop removes the redrawn lines.
func (s *screen) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draw(nil, "")
}

// draw moves back over the redrawn lines, prints the permanent text and the new redrawn lines, in one write.
func (s *screen) draw(live []string, stays string) {
	var b strings.Builder
	if n := len(s.live); n > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\r\x1b[J", n)
	}
	b.WriteString(stays)
	width := 80
	if len(live) > 0 {
		width = s.cols()
	}
	for _, line := range live {
		b.WriteString(clip(line, width-1) + "\n") // a line that wraps would occupy two
	}
	s.live = live
	_, _ = io.WriteString(s.out, b.String()) // no output is left to report an error to
}

func clip(line string, width int) string {
	if runes := []rune(line); len(runes) > width {
		return string(runes[:max(0, width)])
	}
	return line
}
