package harness

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

func (w *World) tokensSocket() string { return filepath.Join(w.socketDir, "tokens.sock") }
func (w *World) textSocket() string   { return filepath.Join(w.socketDir, "text.sock") }

// startText starts the text server next to the gateway. It serves as soon as a layout is active.
func (w *World) startText() (err error) {
	command := w.o.PythonEngine("vllm", []string{"agent/vllm"}, "-m", "tangram_front.main")
	args := []string{"--tokens-socket", w.tokensSocket(), "--text-socket", w.textSocket(), "--ready-file", filepath.Join(w.o.Dir, "text.ready"),
		"--model", w.o.Checkpoint, "--served-model-name", w.Model()}
	w.text, err = start(w.o.Dir, "text", command[0], slices.Concat(command[1:], args, w.o.Text)...)
	return err
}

// textReady is the content of a text server's ready file.
type textReady struct {
	PID int `json:"pid"`
}

// AwaitText waits until a text server with another process id than `other` serves, and returns its process id.
func (w *World) AwaitText(ctx context.Context, other int) (int, error) {
	for {
		var ready textReady
		if err := w.text.waitReady(ctx, &ready); err != nil {
			return 0, err
		}
		if ready.PID != other {
			return ready.PID, nil
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// RestartText starts a new process for the text server, without a fork of the one that has done its imports.
func (w *World) RestartText() error {
	w.text.remove()
	return w.startText()
}

// EndGateway terminates the gateway like a kubelet: the gateway drains. The channel is closed when the gateway has
// ended.
func (w *World) EndGateway() <-chan struct{} {
	_ = w.gateway.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	return w.gateway.ended
}

// KillText kills the text server, which is then forked again. It returns the process id of the killed one.
func (w *World) KillText() (int, error) {
	wire, err := os.ReadFile(w.text.ready)
	if err != nil {
		return 0, err
	}
	var ready textReady
	if err := json.Unmarshal(wire, &ready); err != nil {
		return 0, err
	}
	return ready.PID, syscall.Kill(ready.PID, syscall.SIGKILL)
}
