// Package plots draws the output of benches as SVG for docs/. The same lines give the same files.
package plots

import (
	"bufio"
	"encoding/json"
	"fmt"
	"image/color"
	"io"
	"os"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

const (
	width  = 18 * vg.Centimeter
	height = 9 * vg.Centimeter
)

// policy of a plot: its key in the bench output, its label, and its colour.
type policy struct {
	key, name string
	colour    color.RGBA
}

var policies = []policy{
	{"full", "Tangram full", color.RGBA{0, 90, 181, 255}},
	{"incremental", "Tangram incremental", color.RGBA{220, 50, 32, 255}},
	{"deepseek-global", "DeepSeek-like", color.RGBA{120, 120, 120, 255}},
	{"flashlb", "FlashLB-like", color.RGBA{150, 110, 200, 255}},
	{"swift", "Swift-like", color.RGBA{60, 160, 80, 255}},
}

var forecasts = []policy{
	{"adaptive", "adaptive", color.RGBA{220, 50, 32, 255}},
	{"last", "last window", color.RGBA{0, 90, 181, 255}},
	{"mean10", "mean of 10", color.RGBA{120, 120, 120, 255}},
	{"ewma.5", "EWMA .5", color.RGBA{150, 110, 200, 255}},
	{"ewma.8", "EWMA .8", color.RGBA{60, 160, 80, 255}},
	{"shrink.9", "last ^.9", color.RGBA{200, 160, 40, 255}},
}

// Draw writes moves.svg and floor.svg from output of the bench eplb, and forecast.svg from predict, into a folder.
func Draw(eplb, predict io.Reader, dir string) error {
	placed, err := lines(eplb, "eplb")
	if err != nil {
		return err
	}
	forecast, err := lines(predict, "predict")
	if err != nil {
		return err
	}
	for _, to := range []struct {
		name string
		draw func([]line) (*plot.Plot, error)
		of   []line
	}{{"moves.svg", moves, placed}, {"floor.svg", floor, placed}, {"forecast.svg", next, forecast}} {
		p, err := to.draw(to.of)
		if err != nil {
			return fmt.Errorf("%s: %w", to.name, err)
		}
		if err := save(p, filepath.Join(dir, to.name)); err != nil {
			return err
		}
	}
	return nil
}

func save(p *plot.Plot, path string) error {
	to, err := p.WriterTo(width, height, "svg")
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644) //nolint:gosec // a page of the documentation
	if err != nil {
		return err
	}
	if _, err := to.WriteTo(f); err != nil {
		_ = f.Close() // the first error is the one to return
		return fmt.Errorf("%s: %w", path, err)
	}
	return f.Close()
}

// Gaps draws gaps.svg from the output of the bench throughput-during: the time between consecutive tokens during a mode
// switch, with strategies Smooth and Fast. Crosses at the bottom are the flips.
func Gaps(throughput io.Reader, dir string) error {
	all, err := lines(throughput, "throughput-during")
	if err != nil {
		return err
	}
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = "seconds after the command", "milliseconds since the token before"
	p.Y.Min = 0
	p.Add(plotter.NewGrid())
	p.Legend.Top = true
	beside := 0.0 // vertical offset of the flips, which would hide those of the other strategy
	for _, c := range []policy{{"fast", "Fast", color.RGBA{220, 50, 32, 255}}, {"smooth", "Smooth", color.RGBA{0, 90, 181, 255}}} {
		var tokens, flips plotter.XYs
		for _, l := range all {
			if l["plot"] != "gaps" || l["steps"] != "paced" || l["strategy"] != c.key {
				continue
			}
			if tokens, flips, err = gapsAndFlips(l); err != nil {
				return fmt.Errorf("the gaps of strategy %s: %w", c.key, err)
			}
			step, err := l.number("step_ms")
			if err != nil {
				return err
			}
			p.Title.Text = fmt.Sprintf("Tokens of four streams in a switch to TensorParallel, steps of %g ms", step)
		}
		if len(tokens) == 0 {
			return fmt.Errorf("output of bench throughput-during: it has no gaps of strategy %s", c.key)
		}
		if err := dots(p, c, tokens); err != nil {
			return err
		}
		for i := range flips {
			flips[i].Y = beside
		}
		beside += 6
		s, err := plotter.NewScatter(flips)
		if err != nil {
			return fmt.Errorf("flips of strategy %s: %w", c.key, err)
		}
		s.GlyphStyle = draw.GlyphStyle{Color: c.colour, Radius: vg.Points(4), Shape: draw.CrossGlyph{}}
		p.Add(s)
		p.Legend.Add(c.name+", flips", s)
	}
	p.Y.Max *= 1.3 // room for the legend
	return save(p, filepath.Join(dir, "gaps.svg"))
}

// gapsAndFlips returns the points of one transition.
func gapsAndFlips(l line) (tokens, flips plotter.XYs, err error) {
	numbers := func(name string) []float64 {
		list, is := l[name].([]any)
		if !is && err == nil {
			err = fmt.Errorf("no list %q", name)
		}
		out := make([]float64, len(list))
		for i, v := range list {
			if out[i], is = v.(float64); !is && err == nil {
				err = fmt.Errorf("entry %d of %q is no number", i, name)
			}
		}
		return out
	}
	at, gaps := numbers("at"), numbers("gap_ms")
	if err == nil && len(at) != len(gaps) {
		err = fmt.Errorf("%d times and %d gaps", len(at), len(gaps))
	}
	for _, x := range numbers("flips") {
		flips = append(flips, plotter.XY{X: x})
	}
	if err != nil {
		return nil, nil, err
	}
	for i := range at {
		tokens = append(tokens, plotter.XY{X: at[i], Y: gaps[i]})
	}
	return tokens, flips, nil
}

// line is an output line of a bench other than its summary.
type line map[string]any

func (l line) number(name string) (float64, error) {
	v, ok := l[name].(float64)
	if !ok {
		return 0, fmt.Errorf("the line %v has no number %q: is it of this version of the bench?", l, name)
	}
	return v, nil
}

func lines(r io.Reader, bench string) ([]line, error) {
	var out []line
	scan := bufio.NewScanner(r)
	scan.Buffer(nil, 1<<20)
	for n := 1; scan.Scan(); n++ {
		var l line
		if err := json.Unmarshal(scan.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("output of bench %s, line %d: %w", bench, n, err)
		}
		if l["bench"] != bench {
			return nil, fmt.Errorf("output of bench %s, line %d: it is of bench %v", bench, n, l["bench"])
		}
		if _, summary := l["metrics"]; !summary {
			out = append(out, l)
		}
	}
	if err := scan.Err(); err != nil {
		return nil, fmt.Errorf("output of bench %s: %w", bench, err)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("output of bench %s: it has no lines", bench)
	}
	return out, nil
}

// moves plots the moved slots against the balance reached, workload A.
func moves(all []line) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = "Workload A: 58 layers, 256 experts, 288 slots on 32 ranks"
	p.X.Label.Text, p.Y.Label.Text = "slots that move at each rebalance, %", "balancedness, window planned for"
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, 100, .97, 1.001
	p.Legend.YOffs = vg.Centimeter
	p.Add(plotter.NewGrid())
	for _, c := range policies {
		var at plotter.XYs
		for _, l := range all {
			if l["workload"] != "A" || l["policy"] != c.key {
				continue
			}
			x, err := l.number("moved_share")
			if err != nil {
				return nil, err
			}
			y, err := l.number("balance")
			if err != nil {
				return nil, err
			}
			at = append(at, plotter.XY{X: 100 * x, Y: y})
		}
		if err := dots(p, c, at); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// floor plots the balance over that of an even split at best, by workload.
func floor(all []line) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = "Balance over what an even split can reach at best"
	p.Y.Label.Text = "balance over floor"
	p.Y.Min, p.Y.Max = .92, 1
	return groups(p, all, policies, "workload", func(l line, c policy) (float64, bool, error) {
		if l["policy"] != c.key {
			return 0, false, nil
		}
		v, err := l.number("balance_over_floor")
		return v, true, err
	})
}

// next plots the balance of the next window by forecast.
func next(all []line) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = "Balancedness of the next window, placed by a forecast"
	p.Y.Label.Text = "balancedness"
	p.Y.Min, p.Y.Max = .5, 1
	return groups(p, all, forecasts, "drift", func(l line, c policy) (float64, bool, error) {
		v, err := l.number(c.key)
		return v, true, err
	})
}

// groups of dots, one for each policy.
func groups(p *plot.Plot, all []line, of []policy, group string, value func(line, policy) (float64, bool, error)) (*plot.Plot, error) {
	var names []string
	for _, l := range all {
		name, ok := l[group].(string)
		if !ok {
			return nil, fmt.Errorf("the line %v has no %q", l, group)
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	p.NominalX(names...)
	p.X.Min, p.X.Max = -.5, 1.3*float64(len(names))-.4 // room for the legend at the right
	p.Add(plotter.NewGrid())
	for i, c := range of {
		var points plotter.XYs
		for _, l := range all {
			v, there, err := value(l, c)
			if err != nil {
				return nil, err
			}
			if there {
				points = append(points, plotter.XY{X: float64(slices.Index(names, l[group].(string))) + .1*(float64(i)-float64(len(of)-1)/2), Y: v})
			}
		}
		if err := dots(p, c, points); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func dots(p *plot.Plot, c policy, at plotter.XYs) error {
	if len(at) == 0 {
		return fmt.Errorf("no line of the bench is about %s", c.key)
	}
	s, err := plotter.NewScatter(at)
	if err != nil {
		return err
	}
	s.GlyphStyle = draw.GlyphStyle{Color: c.colour, Radius: vg.Points(4), Shape: draw.CircleGlyph{}}
	p.Add(s)
	p.Legend.Add(c.name, s)
	return nil
}
