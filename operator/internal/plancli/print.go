package plancli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"
)

// Outputs lists the formats of Print.
const Outputs = "table, json, yaml"

// CheckOutput checks the format before anything is computed.
func CheckOutput(output string) error {
	switch output {
	case "table", "json", "yaml":
		return nil
	}
	return fmt.Errorf("--output is %q; want one of %s", output, Outputs)
}

// Report can be printed as a table, with at most `most` lines of a kind (0: all). JSON and YAML are always complete.
type Report interface {
	Table(w *tabwriter.Writer, most int)
}

// Print prints a report.
func Print(out io.Writer, output string, r Report, most int) error {
	switch output {
	case "json":
		wire, err := json.Marshal(r)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(out, string(wire))
		return err
	case "yaml":
		wire, err := yaml.Marshal(r)
		if err != nil {
			return err
		}
		_, err = out.Write(wire)
		return err
	}
	var text strings.Builder // writes to it cannot fail, nor can the lines below
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	r.Table(w, most)
	_ = w.Flush()
	_, err := io.WriteString(out, text.String())
	return err
}

func line(w *tabwriter.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(w, format+"\n", args...)
}

func (b Balanced) cells() string {
	return fmt.Sprintf("%.4f\t%.4f\t%.4f\t%.4f\t%.4f\t", b.Now, b.After, b.Reachable, b.Floor, b.Weighted)
}

// Table prints the report as tables.
func (r *BalanceReport) Table(w *tabwriter.Writer, most int) {
	line(w, "%d layers of %d experts on %s (%s), %d slots per rank and layer: %d redundant experts per layer", len(r.Layers), r.Experts, plural(r.Ranks, "rank"), plural(r.Nodes, "node"), r.Slots, r.Redundant)
	line(w, "load: %s; active placement: %s; mode: %s", r.Demand, r.Old, r.Mode)
	line(w, "")
	line(w, "balancedness\tnow\tafter\treachable\tupper bound\tweighted\tmoves\t")
	line(w, "all layers\t%s%s\t", r.All.cells(), Count(r.Moves))
	line(w, "worst layer\t%s\t", r.Worst.cells())
	for i, l := range r.Layers {
		if most > 0 && i == most {
			line(w, "%s more\t\t\t\t\t\t\t", Count(len(r.Layers)-most))
			break
		}
		line(w, "layer %d\t%s%d\t", l.Layer, l.cells(), l.Moves)
	}
	_ = w.Flush() // the lines below are no columns
	line(w, "")
	line(w, "%s", r.Why)
	if b := r.Budget; b != nil {
		line(w, "")
		if b.Choice != nil {
			line(w, "%s", strings.TrimSuffix(b.Choice.String(), "\n"))
			return
		}
		line(w, "redundant\treachable\tupper bound\t")
		for _, p := range b.Curve {
			line(w, "%d\t%.4f\t%.4f\t", p.Redundant, p.Reachable, p.Floor)
		}
	}
}
