// Package crossplot draws the crossover of the two modes.
package crossplot

import (
	"fmt"
	"io"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"tangram.dev/operator/internal/simcli"
	"tangram.dev/operator/pkg/simplot"
)

// Published thresholds in requests, drawn as vertical lines.
var published = []float64{205, 256}

// Draw draws the step duration of mode ExpertParallel over that of TensorParallel, by requests, with a line for each
// engine, routing and context. Above 1, mode TensorParallel is faster.
func Draw(to io.Writer, title string, all []simcli.Crossover) error {
	if len(all) == 0 || len(all) > 2*len(simplot.Colours) {
		return fmt.Errorf("found %d crossovers to plot; want 1 to %d", len(all), 2*len(simplot.Colours))
	}
	p := plot.New()
	p.Title.Text, p.Title.TextStyle.Font.Size = title, vg.Points(10)
	p.X.Label.Text, p.Y.Label.Text = "decoding requests", "step duration, ExpertParallel / TensorParallel"
	p.X.Scale, p.X.Min, p.X.Max = plot.LogScale{}, 1, simcli.MostCrossing
	var ticks plot.ConstantTicks
	for n := 1; n <= simcli.MostCrossing; n *= 2 {
		ticks = append(ticks, plot.Tick{Value: float64(n), Label: strconv.Itoa(n)})
	}
	p.X.Tick.Marker = ticks
	p.Add(plotter.NewGrid())
	low, high := 1.0, 1.0
	engines := map[string]int{} // index of its colour
	for _, c := range all {
		if _, there := engines[c.Engine]; !there {
			engines[c.Engine] = len(engines)
		}
		points := make(plotter.XYs, len(c.Points))
		for i, at := range c.Points {
			points[i] = plotter.XY{X: float64(at.Requests), Y: at.Expert.Sum() / at.Tensor.Sum()}
			low, high = min(low, points[i].Y), max(high, points[i].Y)
		}
		l, err := plotter.NewLine(points)
		if err != nil {
			return err
		}
		l.Color, l.Width = simplot.Colours[engines[c.Engine]%len(simplot.Colours)], vg.Points(1.5)
		if c.Routing != all[0].Routing || c.Context != all[0].Context {
			l.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
		}
		p.Add(l)
		p.Legend.Add(fmt.Sprintf("%s, %s, %d tokens", c.Engine, c.Routing, c.Context), l)
	}
	for _, x := range published {
		l, err := plotter.NewLine(plotter.XYs{{X: x, Y: 0}, {X: x, Y: 2 * high}})
		if err != nil {
			return err
		}
		l.Color, l.Width = simplot.Colours[5], vg.Points(1)
		p.Add(l)
		if x == published[0] {
			p.Legend.Add("published thresholds: 205 and 256", l)
		}
	}
	p.Y.Min, p.Y.Max = math.Floor(5*low)/5, math.Ceil(5*high)/5
	p.Legend.Top, p.Legend.TextStyle.Font.Size = true, vg.Points(8)
	canvas := vgsvg.New(simplot.Width, simplot.Width/2)
	p.Draw(draw.New(canvas))
	_, err := canvas.WriteTo(to)
	return err
}
