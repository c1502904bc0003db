package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// lines passes a program's output on line by line, and keeps it for an error.
type lines struct {
	say  func(format string, args ...any)
	name string
	rest []byte
	all  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.all.Write(p)
	l.rest = append(l.rest, p...)
	for {
		line, rest, found := bytes.Cut(l.rest, []byte("\n"))
		if !found {
			return len(p), nil
		}
		if text := strings.TrimRight(string(line), " \r"); text != "" {
			l.say("  %s: %s", l.name, text)
		}
		l.rest = rest
	}
}

// end returns the last lines of the output.
func (l *lines) end() string {
	all := strings.Split(strings.TrimSpace(l.all.String()), "\n")
	return strings.Join(all[max(0, len(all)-15):], "\n")
}

func (o *Options) run(ctx context.Context, program string, args ...string) error {
	return o.runIn(ctx, o.Root, nil, program, args...)
}

// runIn runs a program in a folder, with env added. The program has a separate process group: Ctrl-C on the terminal
// ends ctx, and ctx terminates the program, so that it can clean up.
func (o *Options) runIn(ctx context.Context, dir string, env []string, program string, args ...string) error {
	out := &lines{say: o.Say, name: filepath.Base(program)}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%s %s: %w; the end of what it said:\n%s", filepath.Base(program), strings.Join(args, " "), err, out.end())
	}
	return nil
}
