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

// onCluster is a command with the flag --dir.
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
	command.Flags().StringVar(&o.Dir, "dir", "build/cluster", "folder of the cluster's state, which up makes and down removes")
	return command
}

func upCommand() *cobra.Command {
	var nodes int
	var memory string
	var images []string
	command := onCluster("up", "Brings up a cluster and waits until its nodes are ready", cobra.NoArgs,
		func(command *cobra.Command, o cluster.Options, _ []string) error {
			o.Nodes, o.Images = nodes, images
			if memory != "" {
				quantity, err := resource.ParseQuantity(memory)
				if err != nil {
					return fmt.Errorf("--memory-per-node %q: %w", memory, err)
				}
				o.MemoryPerNode = quantity.Value()
				if o.MemoryPerNode <= 0 {
					return fmt.Errorf("--memory-per-node %q: want more than nothing, for example 4Gi", memory)
				}
			}
			if nodes < 1 {
				return fmt.Errorf("--nodes %d: want at least 1", nodes)
			}
			return cluster.Up(command.Context(), o)
		})
	command.Flags().IntVar(&nodes, "nodes", 2, "nodes beside the control plane")
	command.Flags().StringVar(&memory, "memory-per-node", "", "memory that pods can have on each node, for example 6Gi (default about half of the machine's)")
	command.Flags().StringArrayVar(&images, "image", nil, "image archive to load into every node (repeat it)")
	return command
}

func downCommand() *cobra.Command {
	var keep bool
	command := onCluster("down", "Ends a cluster, also a half-made one, and puts the machine back as it was", cobra.NoArgs,
		func(command *cobra.Command, o cluster.Options, _ []string) error {
			return cluster.Down(command.Context(), o, keep)
		})
	command.Flags().BoolVar(&keep, "keep-logs", false, "keep the logs, in DIR.logs")
	return command
}

func statusCommand() *cobra.Command {
	return onCluster("status", "Shows the machines of a cluster", cobra.NoArgs, func(command *cobra.Command, o cluster.Options, _ []string) error {
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
	return onCluster("load-image FILE.tar...", "Loads image archives into every node", cobra.MinimumNArgs(1),
		func(command *cobra.Command, o cluster.Options, archives []string) error {
			return cluster.LoadImages(command.Context(), o, archives)
		})
}

func nodeCommand() *cobra.Command {
	node := &cobra.Command{Use: "node", Short: "Does to a node (or to cp, the control plane) what happens to machines"}
	node.AddCommand(
		onCluster("kill NAME", "Power loss: every process of it ends at once", cobra.ExactArgs(1),
			func(command *cobra.Command, o cluster.Options, args []string) error {
				return cluster.KillMachine(command.Context(), o, args[0])
			}),
		onCluster("start NAME", "Power on: its disk is as it was", cobra.ExactArgs(1),
			func(command *cobra.Command, o cluster.Options, args []string) error {
				return cluster.StartMachine(command.Context(), o, args[0])
			}),
		onCluster("cut NAME", "Unplugs it from the network; what runs there runs on", cobra.ExactArgs(1),
			func(command *cobra.Command, o cluster.Options, args []string) error {
				return cluster.SetLink(command.Context(), o, args[0], false)
			}),
		onCluster("join NAME", "Plugs it in again", cobra.ExactArgs(1),
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
		Use: "build-image --name NAME --out X.tar FILE[:DEST]...", Short: "Builds an image archive from files of this machine",
		Long: "Builds an image archive from files of this machine, with the shared libraries that they need. FILE may be a folder.\nDEST is /bin/<name of the file> if not given.",
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
	command.Flags().StringVar(&spec.Name, "name", "", "name with a tag, for example tangram.dev/agent:dev")
	command.Flags().StringVar(&out, "out", "", "the archive")
	command.Flags().StringArrayVar(&spec.Entrypoint, "entrypoint", nil, "program that runs, and its arguments (repeat it; default the first file)")
	command.Flags().StringArrayVar(&spec.Env, "env", nil, "NAME=VALUE of the environment (repeat it)")
	command.Flags().StringArrayVar(&spec.Exclude, "exclude", nil, "of folders: a path of the image, or a name, to leave out, with wildcards (repeat it)")
	command.Flags().StringVar(&spec.User, "user", "", "user that it runs as, for example 65532 (default root)")
	for _, name := range []string{"name", "out"} {
		if err := command.MarkFlagRequired(name); err != nil {
			panic(err) // no such flag
		}
	}
	return command
}
