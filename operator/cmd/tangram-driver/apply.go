package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tangram.dev/operator/internal/driver"
	"tangram.dev/operator/pkg/layout"
)

func applyCommand() *cobra.Command {
	var file, mode, placement, logLevel string
	var ranks, run int
	var shapes []string
	var spare uint32
	var asJSON, fromCheckpoint, pause bool
	limits := driver.DefaultLimits
	c := &cobra.Command{
		Use: "apply", Short: "Run a transition to a number of ranks and a mode", Args: cobra.NoArgs,
		Long: "Runs a transition to a number of ranks and a mode, and exits when it ends.\n" +
			"With --json-progress, each line on standard output is {\"event\": ...}. The last line is {\"record\": ...}.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			want, err := wanted(ranks, mode, shapes, placement, spare)
			if err != nil {
				return usageError{err}
			}
			want.FromCheckpoint, want.PauseSteps = fromCheckpoint, pause
			if run < 1 {
				return usageError{fmt.Errorf("--run is %d; want at least 1 flip per permit", run)}
			}
			var level slog.Level
			if err := level.UnmarshalText([]byte(logLevel)); err != nil {
				return usageError{fmt.Errorf("--log-level: %w", err)}
			}
			w, err := readWorld(file)
			if err != nil {
				return err
			}
			d, done, err := w.open(slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level})))
			if err != nil {
				return err
			}
			defer done()
			d.Limits, d.Run = limits, run
			out := printer{out: cmd.OutOrStdout(), json: asJSON}
			d.Hooks = driver.Hooks{Progress: out.event, Save: driver.SaveTo(d.Store)}
			record, err := d.Apply(cmd.Context(), want)
			if record != nil {
				record.Calls = calls(d)
			}
			return errors.Join(blame(placement, err), out.record(record))
		},
	}
	f := c.Flags()
	f.StringVar(&file, "world-file", "", "JSON file with the keys world, agents, store and tls")
	f.IntVar(&ranks, "ranks", 0, "target number of ranks")
	f.StringVar(&mode, "mode", "ExpertParallel", "target mode: ExpertParallel, TensorParallel or Hybrid")
	f.StringArrayVar(&shapes, "layer-shape", nil, "expert and attention group sizes of layers, as LAYERS=g/t, e.g. 0-2=1/4; overrides --mode for these layers; repeatable")
	f.StringVar(&placement, "placement", "", placementHelp)
	f.Uint32Var(&spare, "spare-banks", 1, "number of layers that one flip can change; used only for the first layout of a world")
	f.BoolVar(&fromCheckpoint, "from-checkpoint", false, "read missing pieces from the checkpoint even if other ranks have them (for benchmarks)")
	f.BoolVar(&pause, "pause-steps", false, "pause engines from the preparation of a flip until it completes (strategy Fast)")
	f.IntVar(&run, "run", driver.DefaultRun, "maximum number of flips per permit")
	f.BoolVar(&asJSON, "json-progress", false, "print events and the record as JSON lines")
	f.StringVar(&logLevel, "log-level", "info", "log level: debug, info, warn or error")
	f.DurationVar(&limits.Engines, "engines-timeout", limits.Engines, "maximum time until all engines are attached")
	f.DurationVar(&limits.Stage, "stage-timeout", limits.Stage, "maximum time without a received byte while staging; after it, the attempt is aborted")
	f.DurationVar(&limits.Flip, "flip-timeout", limits.Flip, "maximum time from the permit to the flip; after it, the attempt is aborted")
	for _, name := range []string{"world-file", "ranks"} {
		if err := c.MarkFlagRequired(name); err != nil {
			panic(err) // no flag has this name: a bug in this file
		}
	}
	return c
}

// calls returns the number of calls to agents so far.
func calls(d *driver.Driver) (n uint64) {
	for _, agent := range d.Agents {
		if counts, ok := agent.(interface{ Calls() uint64 }); ok {
			n += counts.Calls()
		}
	}
	return n
}

func wanted(ranks int, mode string, shapes []string, placement string, spare uint32) (driver.Wanted, error) {
	if ranks <= 0 {
		return driver.Wanted{}, fmt.Errorf("--ranks is %d; want at least 1", ranks)
	}
	m, err := layout.ParseMode(mode)
	if err != nil {
		return driver.Wanted{}, fmt.Errorf("--mode: %w", err)
	}
	want := driver.Wanted{Ranks: ranks, Shape: layout.Shape{Mode: m, Layers: map[uint32]layout.LayerShape{}}, SpareBanks: spare}
	for _, s := range shapes {
		if err := parseShape(s, want.Shape.Layers); err != nil {
			return want, fmt.Errorf("--layer-shape %q: %w", s, err)
		}
	}
	if m == layout.Hybrid && len(shapes) == 0 {
		return want, errors.New("--mode Hybrid needs --layer-shape, e.g. 0-2=1/4; layers without a shape are as in ExpertParallel")
	}
	if placement != "" {
		want.Shape.Placement, err = readPlacement(placement, ranks, m)
	}
	return want, err
}

// parseShape reads "FIRST[-LAST]=g/t".
func parseShape(s string, into map[uint32]layout.LayerShape) error {
	layers, sizes, ok := strings.Cut(s, "=")
	g, t, ok2 := strings.Cut(sizes, "/")
	if !ok || !ok2 {
		return errors.New("want LAYERS=g/t, e.g. 0-2=1/4")
	}
	first, last, isRange := strings.Cut(layers, "-")
	if !isRange {
		last = first
	}
	var n [4]uint64
	for i, text := range []string{first, last, g, t} {
		v, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return fmt.Errorf("found %q; want a number below 65536", text)
		}
		n[i] = v
	}
	if n[0] > n[1] || n[2] == 0 || n[3] == 0 {
		return errors.New("want ascending layers and group sizes of at least 1")
	}
	for l := n[0]; l <= n[1]; l++ {
		into[uint32(l)] = layout.LayerShape{ExpertGroup: uint32(n[2]), AttentionGroup: uint32(n[3])}
	}
	return nil
}

// printer prints events: as JSON lines, or one line per phase.
type printer struct {
	out  io.Writer
	json bool
	last string
}

func (p *printer) event(e driver.Event) {
	if p.json {
		_ = json.NewEncoder(p.out).Encode(map[string]any{"event": e}) // a closed output does not stop a transition
		return
	}
	if now := fmt.Sprint(e.Flip, e.Phase); now != p.last {
		p.last = now
		_, _ = fmt.Fprintf(p.out, "flip %d/%d %-6s epoch %d: %s\n", e.Flip, e.Flips, e.Kind, e.Epoch, e.Phase)
	}
}

func (p *printer) record(r *driver.Record) error {
	if r == nil {
		return nil
	}
	if p.json {
		return json.NewEncoder(p.out).Encode(map[string]any{"record": r})
	}
	_, err := fmt.Fprintf(p.out, "epoch %d, %d of %d flips in %v: expert bytes %d (lower bound %d), dense bytes %d, copied within ranks %d\n", r.Epoch, len(r.Flips),
		r.PlannedFlips, time.Duration(r.TotalSeconds*float64(time.Second)).Round(time.Millisecond), r.ExpertBytes, r.ExpertBoundBytes, r.DenseBytes, r.LocalBytes)
	return err
}
