// Package kube controls a cluster through kubectl.
package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Timeouts of calls, so that an unresponsive API server blocks no caller.
const (
	callLimit   = 30 * time.Second
	deleteLimit = 2 * time.Minute // for the removal of an object
)

// Client runs kubectl. It may be copied, and used by several goroutines.
type Client struct {
	Binary     string // path of kubectl
	Kubeconfig string
	Namespace  string            // of namespaced objects; empty: from the kubeconfig
	Said       func(line string) // receives each changing or waiting command, as typed by a user; may be nil
}

// In returns a client for another namespace.
func (c *Client) In(namespace string) *Client {
	other := *c
	other.Namespace = namespace
	return &other
}

// Error is the failure of a kubectl call.
type Error struct {
	Args   []string
	Stderr string
	Err    error
}

func (e *Error) Error() string {
	return fmt.Sprintf("kubectl %s: %v: %s", strings.Join(e.Args, " "), e.Err, strings.TrimSpace(e.Stderr))
}

// Unwrap returns the exit error, or the context's.
func (e *Error) Unwrap() error { return e.Err }

// NotFound reports whether err is kubectl's error for a missing object.
func NotFound(err error) bool {
	var e *Error
	return errors.As(err, &e) && strings.Contains(e.Stderr, "(NotFound)")
}

// command runs kubectl in a separate process group: Ctrl-C on the terminal reaches only this program, which ends its
// children in order.
func (c *Client) command(ctx context.Context, args []string) *exec.Cmd {
	if c.Namespace != "" {
		args = append([]string{"-n", c.Namespace}, args...)
	}
	cmd := exec.CommandContext(ctx, c.Binary, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 2 * time.Second
	return cmd
}

// Run returns kubectl's output, within half a minute. stdin may be nil.
func (c *Client) Run(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	return c.runFor(ctx, callLimit, stdin, args...)
}

func (c *Client) runFor(ctx context.Context, limit time.Duration, stdin io.Reader, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := c.command(ctx, args)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return stdout.String(), &Error{Args: args, Stderr: stderr.String(), Err: err}
	}
	return stdout.String(), nil
}

func (c *Client) say(args ...string) {
	if c.Said == nil {
		return
	}
	line := "kubectl "
	if c.Namespace != "" {
		line += "-n " + c.Namespace + " "
	}
	quoted := make([]string, len(args))
	for i, a := range args {
		if quoted[i] = a; strings.ContainsAny(a, " {}\"*") {
			quoted[i] = "'" + a + "'"
		}
	}
	c.Said(line + strings.Join(quoted, " "))
}

// Get decodes an object ("pod", "demo-0") or a list ("pods", "-l", "a=b") into `into`.
func (c *Client) Get(ctx context.Context, into any, args ...string) error {
	args = append([]string{"get", "-o", "json"}, args...)
	out, err := c.Run(ctx, nil, args...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(out), into); err != nil {
		return fmt.Errorf("kubectl %s gives no %T: %w", strings.Join(args, " "), into, err)
	}
	return nil
}

// Apply applies objects of any type that marshals to an object's JSON.
func (c *Client) Apply(ctx context.Context, objects ...any) error {
	var in bytes.Buffer
	for _, o := range objects {
		wire, err := json.Marshal(o)
		if err != nil {
			return fmt.Errorf("object to apply: %w", err)
		}
		in.Write(wire)
		in.WriteByte('\n')
	}
	c.say("apply", "-f", "-")
	_, err := c.Run(ctx, &in, "apply", "-f", "-")
	return err
}

// ApplyFile applies a manifest or a folder of them.
func (c *Client) ApplyFile(ctx context.Context, path string) error {
	c.say("apply", "-f", path)
	_, err := c.Run(ctx, nil, "apply", "-f", path)
	return err
}

// Wait waits until a condition of an object ("moedeployment/demo", "Ready" or "Progressing=false") holds for its newest
// generation.
func (c *Client) Wait(ctx context.Context, object, condition string, timeout time.Duration) error {
	args := []string{"wait", "--for=condition=" + condition, object, fmt.Sprintf("--timeout=%.0fs", timeout.Seconds())}
	c.say(args...)
	_, err := c.runFor(ctx, timeout+callLimit, nil, args...) // kubectl's own timeout message is better
	return err
}

// Scale sets the number of replicas of an object.
func (c *Client) Scale(ctx context.Context, object string, replicas int) error {
	args := []string{"scale", object, fmt.Sprintf("--replicas=%d", replicas)}
	c.say(args...)
	_, err := c.Run(ctx, nil, args...)
	return err
}

// Patch applies a JSON merge patch to an object.
func (c *Client) Patch(ctx context.Context, object, patch string) error {
	args := []string{"patch", object, "--type=merge", "-p", patch}
	c.say(args...)
	_, err := c.Run(ctx, nil, args...)
	return err
}

// Delete deletes an object; a missing object is no error. wait: until it is gone, at most two minutes.
func (c *Client) Delete(ctx context.Context, object string, wait bool) error {
	args := []string{"delete", object, "--ignore-not-found", fmt.Sprintf("--wait=%t", wait)}
	if wait {
		args = append(args, fmt.Sprintf("--timeout=%.0fs", deleteLimit.Seconds()))
	}
	c.say(args...)
	_, err := c.runFor(ctx, deleteLimit+callLimit, nil, args...)
	return err
}
