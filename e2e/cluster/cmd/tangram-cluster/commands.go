package main

import (
	"fmt"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"tangram.dev/e2e/cluster/cluster"
	"tangram.dev/e2e/cluster/image"
)

// onCluster makes a command with the flag --dir.
func onCluster(use, short string, args cobra.PositionalArgs, run func(*cobra.Command, cluster.Options, []string) error) *cobra.Command {
	var o cluster.Options
	command := &cobra.Command{Use: use, Short: short, Args: args, RunE: func(command *cobra.Command, args []string) (err error) {
		if o.Build, err = cluster.DefaultBuild(); err != nil {
			return err
		}
		o.Say = func(format string, args ...any) { command.Println(fmt.Sprintf(format, args...)) }
		command.SetOut(os.Stdout) // Println's default is stderr
		return run(command, o, args)
	}}
	command.Flags().StringVar(&o.Dir, "dir", "build/cluster", "folder for the state of the cluster; up creates it, and down removes it")
	return command
}

func upCommand() *cobra.Command {
	var nodes int
	var memory string
	var images []string
	command := onCluster("up", "Start a cluster and wait until its nodes are ready", cobra.NoArgs,
		func(command *cobra.Command, o cluster.Options, _ []string) error {
			o.Nodes, o.Images = nodes, images
			if memory != "" {
				quantity, err := resource.ParseQuantity(memory)
				if err != nil {
					return fmt.Errorf("--memory-per-node %q: %w", memory, err)
				}
				o.MemoryPerNode = quantity.Value()
				if o.MemoryPerNode <= 0 {
					return fmt.Errorf("--memory-per-node %q: want a positive amount, e.g. 4Gi", memory)
				}
			}
			if nodes < 1 {
				return fmt.Errorf("--nodes %d: want at least 1", nodes)
			}
			return cluster.Up(command.Context(), o)
		})
	command.Flags().IntVar(&nodes, "nodes", 2, "number of nodes in addition to the control plane")
	command.Flags().StringVar(&memory, "memory-per-node", "", "memory for pods on each node, e.g. 6Gi; empty: about half of the machine's memory")
	command.Flags().StringArrayVar(&images, "image", nil, "image archive to load into every node; repeatable")
	return command
}

func downCommand() *cobra.Command {
	var keep bool
	command := onCluster("down", "Remove a cluster, in any state, and undo its changes to this machine", cobra.NoArgs,
		func(command *cobra.Command, o cluster.Options, _ []string) error {
			return cluster.Down(command.Context(), o, keep)
		})
	command.Flags().BoolVar(&keep, "keep-logs", false, "keep the logs, in the folder DIR.logs")
	return command
}

func statusCommand() *cobra.Command {
	return onCluster("status", "Print the machines of a cluster and their state", cobra.NoArgs, func(command *cobra.Command, o cluster.Options, _ []string) error {
		machines, err := cluster.Status(command.Context(), o)
		if err != nil {
			return err
		}
		table := tabwriter.NewWriter(command.OutOrStdout(), 0, 8, 2, ' ', 0)
		rows := []string{"MACHINE\tPID\tADDRESS\tLINK\tNODE\tCOMPONENTS"}
		for _, m := range machines {
			pid, link, node := "off", "cut", m.Node
			if m.PID != 0 {
				pid = fmt.Sprint(m.PID)
			}
			if m.Link {
				link = "up"
			}
			if node == "" {
				node = "-"
			}
			rows = append(rows, strings.Join([]string{m.Name, pid, m.Address, link, node, strings.Join(m.Components, " ")}, "\t"))
		}
		if _, err := table.Write([]byte(strings.Join(rows, "\n") + "\n")); err != nil {
			return err
		}
		return table.Flush()
	})
}

func loadCommand() *cobra.Command {
	return onCluster("load-image FILE.tar...", "Load image archives into every node", cobra.MinimumNArgs(1),
		func(command *cobra.Command, o cluster.Options, archives []string) error {
			return cluster.LoadImages(command.Context(), o, archives)
		})
}

func nodeCommand() *cobra.Command {
	node := &cobra.Command{Use: "node", Short: "Simulate a power loss or a network failure of a node, or of cp, the control plane"}
	node.AddCommand(
		onCluster("kill NAME", "Power a machine off: all its processes end immediately", cobra.ExactArgs(1),
			func(command *cobra.Command, o cluster.Options, args []string) error {
				return cluster.KillMachine(command.Context(), o, args[0])
			}),
		onCluster("start NAME", "Power a machine on, with the same disk", cobra.ExactArgs(1),
			func(command *cobra.Command, o cluster.Options, args []string) error {
				return cluster.StartMachine(command.Context(), o, args[0])
			}),
		onCluster("cut NAME", "Disconnect a machine from the network; its processes continue", cobra.ExactArgs(1),
			func(command *cobra.Command, o cluster.Options, args []string) error {
				return cluster.SetLink(command.Context(), o, args[0], false)
			}),
		onCluster("join NAME", "Connect a machine to the network again", cobra.ExactArgs(1),
			func(command *cobra.Command, o cluster.Options, args []string) error {
				return cluster.SetLink(command.Context(), o, args[0], true)
			}),
	)
	return node
}

func buildCommand() *cobra.Command {
	var spec image.Spec
	var out string
	command := &cobra.Command{
		Use: "build-image --name NAME --out X.tar FILE[:DEST]...", Short: "Build an image archive from files of this machine",
		Long: "Builds an image archive from files of this machine, with the shared libraries that they need. FILE can be a folder.\nThe default of DEST is /bin/NAME, with the name of the file.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			for _, arg := range args {
				file, err := image.ParseFile(arg)
				if err != nil {
					return err
				}
				spec.Files = append(spec.Files, file)
			}
			return spec.Build(command.Context(), out)
		},
	}
	command.Flags().StringVar(&spec.Name, "name", "", "name of the image with a tag, e.g. tangram.dev/agent:dev")
	command.Flags().StringVar(&out, "out", "", "image archive to write")
	command.Flags().StringArrayVar(&spec.Entrypoint, "entrypoint", nil, "program to run, and its arguments; repeatable; empty: the first file")
	command.Flags().StringArrayVar(&spec.Env, "env", nil, "environment variable, as NAME=VALUE; repeatable")
	command.Flags().StringArrayVar(&spec.Exclude, "exclude", nil, "path in the image, or file name, to leave out of folders; can have wildcards; repeatable")
	command.Flags().StringVar(&spec.User, "user", "", "user of the program, e.g. 65532; empty: root")
	for _, name := range []string{"name", "out"} {
		if err := command.MarkFlagRequired(name); err != nil {
			panic(err) // no such flag
		}
	}
	return command
}
