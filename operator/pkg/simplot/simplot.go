// Package simplot plots the runs of `tangram simulate`: arrivals, requests in the world, mode, width and client
// latencies. Equal results give equal files.
package simplot

import (
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"tangram.dev/operator/pkg/simulator"
)

// Played is the run of one policy on the requests.
type Played struct {
	Policy string
	simulator.Result
}

const (
	// Width of a picture.
	Width = 20 * vg.Centimeter
	panel = 4 * vg.Centimeter
	bins  = 150 // of the plotted time
)

// Colours of the policies' lines.
var Colours = []color.RGBA{{0, 90, 181, 255}, {220, 50, 32, 255}, {60, 160, 80, 255}, {150, 110, 200, 255}, {200, 160, 40, 255}, {120, 120, 120, 255}}

// curve over time; a NaN breaks it.
type curve func(Played, axis) []float64

type axis struct{ seconds float64 }

func (a axis) bin(at float64) int { return min(max(int(at/a.seconds*bins), 0), bins-1) }

// middle of a bin.
func (a axis) middle(bin int) float64 { return (float64(bin) + .5) * a.seconds / bins }

// Draw plots all runs into one picture.
func Draw(to io.Writer, all []Played) error {
	if len(all) == 0 || len(all) > len(Colours) {
		return fmt.Errorf("found %d policies to plot; want 1 to %d", len(all), len(Colours))
	}
	var over axis
	for _, p := range all {
		over.seconds = max(over.seconds, p.Makespan)
	}
	if !(over.seconds > 0) {
		return fmt.Errorf("the simulation took no time, so there is nothing to plot")
	}
	var panels []*plot.Plot
	for _, one := range []struct {
		title string
		of    curve
		first bool // of the first policy only: equal for all
		steps bool
	}{
		{"arrival rate, requests/s", arrivals, true, false},
		{"running and waiting requests", inside, false, false},
		{"time to first token, p99, s", firstToken, false, false},
		{"inter-token latency, p99, ms", perToken, false, false},
		{"mode", mode, false, true},
		{"number of ranks", ranks, false, true},
	} {
		p := plot.New()
		p.Y.Label.Text = one.title
		p.Y.Label.TextStyle.Font.Size, p.X.Tick.Label.Font.Size, p.Y.Tick.Label.Font.Size = vg.Points(8), vg.Points(8), vg.Points(8)
		p.X.Min, p.X.Max = 0, over.seconds
		p.Add(plotter.NewGrid())
		for i, played := range all {
			if one.first && i > 0 {
				break
			}
			line := Colours[i]
			if one.first {
				line = color.RGBA{60, 60, 60, 255}
			}
			if err := add(p, points(one.of(played, over), over, float64(i), one.steps), line, one.steps); err != nil {
				return err
			}
		}
		p.X.Min, p.X.Max, p.Y.Min = 0, over.seconds, 0
		switch one.title {
		case "mode":
			p.Y.Min, p.Y.Max = -.5, 2.5
			p.Y.Tick.Marker = plot.ConstantTicks{{Value: 0, Label: "TensorParallel"}, {Value: 1, Label: "ExpertParallel"}, {Value: 2, Label: "other"}}
		case "number of ranks":
			p.Y.Max = math.Ceil(p.Y.Max + 1)
		}
		panels = append(panels, p)
	}
	last := panels[len(panels)-1]
	last.X.Label.Text, last.X.Label.TextStyle.Font.Size = "s", vg.Points(8)
	if err := legend(panels[1], all); err != nil {
		return err
	}
	return write(to, panels)
}

// points of a curve. `place` shifts each policy's line, so that lines of steps do not hide each other.
func points(values []float64, over axis, place float64, steps bool) []plotter.XYs {
	var out []plotter.XYs
	var part plotter.XYs
	for bin, v := range values {
		if math.IsNaN(v) {
			if len(part) > 0 {
				out, part = append(out, part), nil
			}
			continue
		}
		if steps {
			v += .08 * place
		}
		part = append(part, plotter.XY{X: over.middle(bin), Y: v})
	}
	if len(part) > 0 {
		out = append(out, part)
	}
	return out
}

func add(p *plot.Plot, parts []plotter.XYs, c color.RGBA, steps bool) error {
	for _, part := range parts {
		if len(part) == 1 {
			part = append(part, part[0])
		}
		l, err := plotter.NewLine(part)
		if err != nil {
			return err
		}
		l.Color, l.Width = c, vg.Points(1)
		if steps {
			l.StepStyle = plotter.MidStep
		}
		p.Add(l)
	}
	return nil
}

func legend(p *plot.Plot, all []Played) error {
	for i, played := range all {
		l, err := plotter.NewLine(plotter.XYs{{X: 0, Y: 0}, {X: 0, Y: 0}})
		if err != nil {
			return err
		}
		l.Color, l.Width = Colours[i], vg.Points(2)
		p.Legend.Add(played.Policy, l)
	}
	p.Legend.Top, p.Legend.TextStyle.Font.Size = true, vg.Points(8)
	return nil
}

func write(to io.Writer, panels []*plot.Plot) error {
	canvas := vgsvg.New(Width, panel*vg.Length(len(panels)))
	tiles := draw.Tiles{Rows: len(panels), Cols: 1, PadTop: vg.Points(4), PadBottom: vg.Points(4), PadLeft: vg.Points(4), PadRight: vg.Points(8), PadY: vg.Points(6)}
	rows := make([][]*plot.Plot, len(panels))
	for i, p := range panels {
		rows[i] = []*plot.Plot{p}
	}
	for i, row := range plot.Align(rows, tiles, draw.New(canvas)) {
		panels[i].Draw(row[0])
	}
	_, err := canvas.WriteTo(to)
	return err
}

// means of values by bin; an empty bin repeats the previous one.
func means(over axis, each func(note func(at, v float64))) []float64 {
	sums, counts := make([]float64, bins), make([]float64, bins)
	each(func(at, v float64) {
		b := over.bin(at)
		sums[b] += v
		counts[b]++
	})
	out, last := make([]float64, bins), math.NaN()
	for b := range out {
		if counts[b] > 0 {
			last = sums[b] / counts[b]
		}
		out[b] = last
	}
	return out
}

// ended cuts a curve at the end of the run.
func ended(p Played, over axis, values []float64) []float64 {
	for b := over.bin(p.Makespan) + 1; b < bins; b++ {
		values[b] = math.NaN()
	}
	return values
}

func arrivals(p Played, over axis) []float64 {
	out := make([]float64, bins)
	for _, a := range p.Answers {
		out[over.bin(a.Arrival)] += bins / over.seconds
	}
	return out
}

func inside(p Played, over axis) []float64 {
	return ended(p, over, means(over, func(note func(at, v float64)) {
		for _, s := range p.Samples {
			note(s.At, float64(s.Running+s.Waiting))
		}
	}))
}

// p99 of requests by arrival time; an empty bin is a gap.
func p99(p Played, over axis, value func(simulator.Answer) (float64, bool)) []float64 {
	by := make([][]float64, bins)
	for _, a := range p.Answers {
		if v, is := value(a); is {
			b := over.bin(a.Arrival)
			by[b] = append(by[b], v)
		}
	}
	out := make([]float64, bins)
	for b, values := range by {
		out[b] = math.NaN()
		if len(values) > 0 {
			slices.Sort(values)
			out[b] = values[min(int(.99*float64(len(values))), len(values)-1)]
		}
	}
	return out
}

func firstToken(p Played, over axis) []float64 {
	return p99(p, over, func(a simulator.Answer) (float64, bool) { return a.First, true })
}

func perToken(p Played, over axis) []float64 {
	return p99(p, over, func(a simulator.Answer) (float64, bool) {
		return 1e3 * a.Rest / float64(max(a.Output-1, 1)), a.Output > 1
	})
}

// shape parses a sample's mode, such as ExpertParallel/8: 0 TensorParallel, 1 ExpertParallel, 2 other; and the ranks.
func shape(s string) (kind, width float64) {
	name, after, _ := strings.Cut(s, "/")
	kind = 2
	switch name {
	case "TensorParallel":
		kind = 0
	case "ExpertParallel":
		kind = 1
	}
	n, err := strconv.Atoi(after)
	if err != nil {
		return kind, math.NaN()
	}
	return kind, float64(n)
}

// held is the last value of each bin, repeated until the next.
func held(p Played, over axis, value func(string) float64) []float64 {
	out := make([]float64, bins)
	for b := range out {
		out[b] = math.NaN()
	}
	for _, s := range p.Samples {
		out[over.bin(s.At)] = value(s.Mode)
	}
	for b := 1; b < bins; b++ {
		if math.IsNaN(out[b]) {
			out[b] = out[b-1]
		}
	}
	return ended(p, over, out)
}

func mode(p Played, over axis) []float64 {
	return held(p, over, func(s string) float64 { kind, _ := shape(s); return kind })
}

func ranks(p Played, over axis) []float64 {
	return held(p, over, func(s string) float64 { _, n := shape(s); return n })
}
