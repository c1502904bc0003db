package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"tangram.dev/operator/internal/pki"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

func statusCommand() *cobra.Command {
	var file string
	var asJSON bool
	c := &cobra.Command{Use: "status", Short: "Print the status of each rank, as reported by its agent", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w, err := readWorld(file)
			if err != nil {
				return err
			}
			d, done, err := w.open(slog.New(slog.NewTextHandler(os.Stderr, nil)))
			if err != nil {
				return err
			}
			defer done()
			var failures []error
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 4, 2, ' ', 0)
			if !asJSON {
				_, _ = fmt.Fprintln(table, "AGENT\tMEMBER\tRANK\tEPOCH\tPHASE\tATTEMPT\tBYTES\tMEMORY\tENGINE\tSTEPS\tERROR")
			}
			for _, agent := range d.Agents {
				s, err := agent.Status(cmd.Context(), w.World)
				if err != nil {
					failures = append(failures, err) // the other agents are printed anyway
					continue
				}
				if asJSON {
					wire, err := protojson.Marshal(s)
					if err != nil {
						return err
					}
					if err := json.NewEncoder(cmd.OutOrStdout()).Encode(json.RawMessage(wire)); err != nil {
						return err
					}
					continue
				}
				for _, r := range s.Ranks {
					row(table, s, r)
				}
			}
			return errors.Join(append(failures, table.Flush())...)
		}}
	c.Flags().StringVar(&file, "world-file", "", "JSON file with the keys world, agents, store and tls")
	c.Flags().BoolVar(&asJSON, "json", false, "print one StatusResponse per line as JSON")
	if err := c.MarkFlagRequired("world-file"); err != nil {
		panic(err) // no flag has this name: a bug in this file
	}
	return c
}

// row prints a row of the table; Flush returns write errors.
func row(table *tabwriter.Writer, s *tangramv1.StatusResponse, r *tangramv1.RankStatus) {
	rank, engine, t := "-", "none", r.GetTransition()
	if r.InWorld {
		rank = fmt.Sprint(r.Rank)
	}
	if r.Engine.GetAttached() {
		engine = fmt.Sprintf("%d running, %d waiting", r.Engine.Running, r.Engine.Waiting)
	}
	_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\t%d\t%d/%d\t%d of %d free\t%s\t%d\t%s\n", s.GetAddress().GetAgent(), r.GetMember().GetId(), rank, s.Epoch,
		t.GetPhase(), t.GetAttempt(), t.GetBytesDone(), t.GetBytesTotal(), r.MemoryFree, r.MemoryBytes, engine, r.Engine.GetSteps(), t.GetError())
}

func certificatesCommand() *cobra.Command {
	var dir, world string
	var hosts []string
	c := &cobra.Command{Use: "certificates ROLE...", Args: cobra.MinimumNArgs(1),
		Short: "Write the certificate authority of a world and certificates for roles",
		Long: "Writes ca.crt and ca.key to --dir unless they exist. Writes ROLE.crt and ROLE.key for each role; slashes become dashes.\n" +
			"Roles: driver, gateway, agent/POD, engine/POD.",
		RunE: func(_ *cobra.Command, roles []string) error {
			authority, err := pki.OpenFolder(dir, world)
			if err != nil {
				return usageError{err}
			}
			for _, role := range roles {
				name := []rune(role)
				for i, letter := range name {
					if letter == '/' {
						name[i] = '-'
					}
				}
				if _, err := authority.Issue(string(name), role, hosts); err != nil {
					return usageError{err}
				}
			}
			return nil
		}}
	c.Flags().StringVar(&dir, "dir", "", "folder for the certificates")
	c.Flags().StringVar(&world, "world", "", "name of the world")
	c.Flags().StringSliceVar(&hosts, "hosts", []string{"127.0.0.1", "localhost"}, "host names and IP addresses in the certificates")
	for _, name := range []string{"dir", "world"} {
		if err := c.MarkFlagRequired(name); err != nil {
			panic(err) // no flag has this name: a bug in this file
		}
	}
	return c
}
