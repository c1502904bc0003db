package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// without rejects flags that were given but have no effect without flag `of`.
func without(c *cobra.Command, of string, flags ...string) error {
	if c.Flags().Changed(of) {
		return nil
	}
	var idle []string
	for _, name := range flags {
		if c.Flags().Changed(name) {
			idle = append(idle, "--"+name)
		}
	}
	if len(idle) == 0 {
		return nil
	}
	return fmt.Errorf("found %s without --%s: set --%s or remove %s", strings.Join(idle, ", "), of, of, strings.Join(idle, ", "))
}

// onceStdin rejects more than one flag that reads standard input.
func onceStdin(c *cobra.Command, flags ...string) error {
	var from []string
	for _, name := range flags {
		if c.Flags().Lookup(name).Value.String() == "-" {
			from = append(from, "--"+name+" -")
		}
	}
	if len(from) < 2 {
		return nil
	}
	return fmt.Errorf("%s: only one flag can read standard input: write the other inputs to files", strings.Join(from, ", "))
}
