// tangram sizes worlds, and plans and simulates transitions and rebalances before they are applied.
//
// Exit codes: 0 done, 1 failed, 2 the command line or a file that it names is wrong.
package main

import (
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run returns the exit code. The result depends only on the command line and the files that it names. So each failure
// is an error in them, except a failure to write.
func run(args []string, in io.Reader, out, errs io.Writer) int {
	root := &cobra.Command{Use: "tangram", Short: "Plan and simulate transitions and rebalances before you apply them", SilenceErrors: true, SilenceUsage: true, Version: version()}
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetArgs(args)
	root.SetIn(in)
	sink := &writer{out: out}
	root.SetOut(sink)
	root.SetErr(errs)
	root.AddCommand(sizeCommand(), planCommand(), balanceCommand(), simulateCommand(), paceTableCommand())
	begun := false
	onRun(root, func() { begun = true })
	if c, err := root.ExecuteC(); err != nil {
		hint := ""
		if !begun { // only the command line is wrong
			hint = "; see " + c.CommandPath() + " --help"
		}
		_, _ = fmt.Fprintf(errs, "tangram: %v%s\n", err, hint)
		if sink.failed {
			return 1
		}
		return 2
	}
	return 0
}

// onRun makes each command under c call `call` before it runs.
func onRun(c *cobra.Command, call func()) {
	if do := c.RunE; do != nil {
		c.RunE = func(c *cobra.Command, args []string) error {
			call()
			return do(c, args)
		}
	}
	for _, sub := range c.Commands() {
		onRun(sub, call)
	}
}

// flagsOnly rejects arguments.
func flagsOnly(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes only flags, found argument %q", c.CommandPath(), args[0])
	}
	return nil
}

// version is the commit that the command was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return unknownVersion
	}
	return versionOf(info)
}

const unknownVersion = "(unknown commit: built without version control)"

func versionOf(info *debug.BuildInfo) string {
	is := map[string]string{}
	for _, s := range info.Settings {
		is[s.Key] = s.Value
	}
	commit := is["vcs.revision"]
	if commit == "" {
		return unknownVersion
	}
	text := fmt.Sprintf("%.12s of %s", commit, is["vcs.time"])
	if is["vcs.modified"] == "true" {
		text += ", with changes"
	}
	return text
}

// writer remembers whether a write failed.
type writer struct {
	out    io.Writer
	failed bool
}

func (w *writer) Write(p []byte) (int, error) {
	n, err := w.out.Write(p)
	w.failed = w.failed || err != nil
	return n, err
}
