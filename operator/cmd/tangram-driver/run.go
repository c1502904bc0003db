package main

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"tangram.dev/operator/internal/agentclient"
	"tangram.dev/operator/internal/driver"
	"tangram.dev/operator/internal/keeper"
	"tangram.dev/operator/internal/pki"
	"tangram.dev/operator/internal/store"
	"tangram.dev/operator/internal/world"
)

func runCommand() *cobra.Command {
	var file, agents, mode, placement, logLevel string
	var ranks int
	var shapes []string
	var spare uint32
	limits := driver.DefaultLimits
	c := &cobra.Command{
		Use: "run", Short: "Keep a world in a number of ranks and a mode until SIGTERM, with repairs",
		Long: "Keeps the world in a number of ranks and a mode until SIGTERM. Repairs it after the loss of a rank, and restores the number of ranks.\n" +
			"Each repair or transition is a JSON line on standard output: {\"did\": \"repair\" or \"apply\", \"record\": ..., \"error\": ...}.\n" +
			"With --agents-file, the agents are those in the file, which is read at each poll. An agent that is not in the file is lost permanently.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			want, err := wanted(ranks, mode, shapes, placement, spare)
			if err != nil {
				return usageError{err}
			}
			var level slog.Level
			if err := level.UnmarshalText([]byte(logLevel)); err != nil {
				return usageError{fmt.Errorf("--log-level: %w", err)}
			}
			w, err := readWorld(file)
			if err != nil {
				return err
			}
			lines, err := newLines(w, agents)
			if err != nil {
				return err
			}
			log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
			local := keeper.Local{World: w.World, Store: lines.store, Dial: lines.dial, Agents: lines.agents, Log: log,
				Wanted: keeper.Wanted{Pods: want.Ranks, Shape: want.Shape, SpareBanks: want.SpareBanks, Limits: limits}, Did: reporter(cmd.OutOrStdout())}
			local.Run(cmd.Context())
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&file, "world-file", "", "JSON file with the keys world, agents, store and tls")
	f.StringVar(&agents, "agents-file", "", "file with the addresses of the agents, one per line, read at each poll; empty: the agents of the world file")
	f.IntVar(&ranks, "ranks", 0, "target number of ranks")
	f.StringVar(&mode, "mode", "ExpertParallel", "target mode: ExpertParallel, TensorParallel or Hybrid")
	f.StringArrayVar(&shapes, "layer-shape", nil, "expert and attention group sizes of layers, as LAYERS=g/t, e.g. 0-2=1/4; overrides --mode for these layers; repeatable")
	f.StringVar(&placement, "placement", "", placementHelp)
	f.Uint32Var(&spare, "spare-banks", 1, "number of layers that one flip can change; used only for the first layout of a world")
	f.StringVar(&logLevel, "log-level", "info", "log level: debug, info, warn or error")
	f.DurationVar(&limits.Stage, "stage-timeout", limits.Stage, "maximum time without a received byte while staging; after it, the attempt is aborted")
	f.DurationVar(&limits.Flip, "flip-timeout", limits.Flip, "maximum time from the permit to the flip; after it, the attempt is aborted")
	f.DurationVar(&limits.Answer, "answer-timeout", limits.Answer, "maximum time for a response from an agent; after it, the agent counts as missing")
	f.DurationVar(&limits.Stop, "stop-timeout", limits.Stop, "maximum time until all members of a broken world are stopped; after it, the repair is retried")
	f.DurationVar(&limits.Reattach, "reattach-timeout", limits.Reattach, "maximum time for an engine to reattach while its agent runs; after it, the engine counts as lost")
	for _, name := range []string{"world-file", "ranks"} {
		if err := c.MarkFlagRequired(name); err != nil {
			panic(err) // no flag has this name: a bug in this file
		}
	}
	return c
}

// did is a line of output, for one repair or apply.
type did struct {
	Did    string         `json:"did"`
	At     time.Time      `json:"at"`
	Record *driver.Record `json:"record"`
	Error  string         `json:"error,omitempty"`
}

func reporter(out io.Writer) func(string, *driver.Record, error) {
	lines := json.NewEncoder(out)
	var one sync.Mutex
	return func(what string, record *driver.Record, err error) {
		line := did{Did: what, At: time.Now(), Record: record}
		if err != nil {
			line.Error = err.Error()
		}
		one.Lock()
		defer one.Unlock()
		_ = lines.Encode(line) // a closed output does not stop a keeper
	}
}

// lines are connections to agents, which may come and go.
type lines struct {
	world  *worldFile
	file   string
	config *tls.Config
	store  store.Store
}

func newLines(w *worldFile, file string) (*lines, error) {
	config, err := pki.Client(w.TLS, w.World, "agent/")
	if err != nil {
		return nil, usageError{err}
	}
	records, err := store.OpenFile(w.Store)
	if err != nil {
		return nil, err
	}
	return &lines{world: w, file: file, config: config, store: records}, nil
}

func (l *lines) dial(address string) (world.Agent, error) {
	return agentclient.Dial(address, l.config)
}

// agents returns the current addresses, and whether there are no others.
func (l *lines) agents() ([]string, bool, error) {
	if l.file == "" {
		return l.world.Agents, false, nil
	}
	addresses, err := readAgents(l.file)
	return addresses, true, err
}

// readAgents returns the addresses in a file, without duplicates. It skips empty lines and lines that begin with #.
func readAgents(path string) ([]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--agents-file: %w", err)
	}
	defer func() { _ = file.Close() }() // only read
	var out []string
	seen := map[string]bool{}
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		address := strings.TrimSpace(scanner.Text())
		if address == "" || strings.HasPrefix(address, "#") || seen[address] {
			continue
		}
		seen[address] = true
		out = append(out, address)
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("--agents-file %s: %w", path, err)
	}
	return out, nil
}
