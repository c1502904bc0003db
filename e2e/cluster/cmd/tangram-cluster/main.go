// Command tangram-cluster runs a real Kubernetes cluster on this machine, and builds images for it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"tangram.dev/e2e/cluster/host"
	"tangram.dev/e2e/cluster/machine"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "tangram-cluster:", err)
		stop()
		os.Exit(1) //nolint:gocritic // nothing else is deferred
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:          "tangram-cluster",
		Short:        "Run a real Kubernetes cluster on this machine, and build images for it",
		Long:         "Runs a real Kubernetes cluster on this machine. Each machine of the cluster is a process in its own namespaces.\nNeeds root. The command down removes everything, also after an interrupted up.",
		SilenceUsage: true, SilenceErrors: true,
	}
	// Flags of the command that up runs in new namespaces.
	var dir, name string
	supervisor := &cobra.Command{
		Use: host.MachineCommand, Hidden: true, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return machine.Run(dir, name) },
	}
	supervisor.Flags().StringVar(&dir, "dir", "", "folder for the state of the cluster")
	supervisor.Flags().StringVar(&name, "name", "", "name of the machine")
	root.AddCommand(upCommand(), downCommand(), statusCommand(), loadCommand(), nodeCommand(), buildCommand(), supervisor)
	return root
}
