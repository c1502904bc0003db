// tangram-driver changes the layout of a world that runs without Kubernetes, and prints its status.
//
// Exit codes: 0 success, 1 failure (the world serves in its old or an intermediate layout),
// 2 the command line or the world file is wrong.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// usageError is a wrong command line or world file.
type usageError struct{ error }

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run returns the exit code.
func run(args []string, out, errs io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{Use: "tangram-driver", Short: "Change the layout of a world of agents without Kubernetes",
		SilenceErrors: true, SilenceUsage: true}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errs)
	root.AddCommand(applyCommand(), runCommand(), statusCommand(), certificatesCommand())
	begun := false
	for _, c := range root.Commands() {
		do := c.RunE
		c.RunE = func(c *cobra.Command, args []string) error {
			begun = true
			return do(c, args)
		}
	}
	if err := root.ExecuteContext(ctx); err != nil {
		_, _ = fmt.Fprintln(errs, "tangram-driver:", err)
		var usage usageError
		if errors.As(err, &usage) || !begun { // cobra's own errors: a missing flag, an unknown command
			return 2
		}
		return 1
	}
	return 0
}
