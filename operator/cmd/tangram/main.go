// tangram says what would move, and what it is worth, before anything is applied.
//
// Exit codes: 0 done, 1 failed, 2 the command line or a file that it names is wrong.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run gives the exit code. All that these commands do follows from the command line and the files that it names, so all
// that fails is wrong there, but what cannot be written.
func run(args []string, in io.Reader, out, errs io.Writer) int {
	root := &cobra.Command{Use: "tangram", Short: "what a transition or a rebalance would do, before it is applied", SilenceErrors: true, SilenceUsage: true}
	root.SetArgs(args)
	root.SetIn(in)
	sink := &writer{out: out}
	root.SetOut(sink)
	root.SetErr(errs)
	root.AddCommand(planCommand(), balanceCommand(), simulateCommand(), paceTableCommand())
	if err := root.Execute(); err != nil {
		_, _ = fmt.Fprintln(errs, "tangram:", err)
		if sink.failed {
			return 1
		}
		return 2
	}
	return 0
}

// writer remembers that it failed.
type writer struct {
	out    io.Writer
	failed bool
}

func (w *writer) Write(p []byte) (int, error) {
	n, err := w.out.Write(p)
	w.failed = w.failed || err != nil
	return n, err
}
