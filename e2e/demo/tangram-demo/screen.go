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

// screen is where progress goes: lines that stay, and on a terminal below them a few that are
// drawn again and again.
type screen struct {
	tty  bool
	cols func() int

	mu   sync.Mutex
	out  io.Writer
	live []string // drawn now
}

const longStep = 15 * time.Second // between lines of a step that runs on

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

// during a long step reports its progress: on a terminal in place, elsewhere with a line from time to time, unless it shall be brief.
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

// say a line that stays.
func (s *screen) say(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	live := s.live
	s.draw(nil, text+"\n")
	s.draw(live, "")
}

// show lines in place of those shown last; on a terminal only.
func (s *screen) show(lines ...string) {
	if !s.tty {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draw(lines, "")
}

// stop showing.
func (s *screen) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draw(nil, "")
}

// draw in one write: back over the live lines, what stays, the new live lines.
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
		b.WriteString(clip(line, width-1) + "\n") // a line that wraps would count as two
	}
	s.live = live
	_, _ = io.WriteString(s.out, b.String()) // nobody to tell that the terminal is gone
}

func clip(line string, width int) string {
	if runes := []rune(line); len(runes) > width {
		return string(runes[:max(0, width)])
	}
	return line
}
