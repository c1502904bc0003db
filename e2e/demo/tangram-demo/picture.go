package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"math"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func pictureCommand() *cobra.Command {
	var from, to string
	c := &cobra.Command{Use: "picture", Short: "Draw the transitions of a local run: experts on ranks, and the tokens of one stream", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return picture(from, to) }}
	c.Flags().StringVar(&from, "report", "build/try/run/report.json", "report of a local run")
	c.Flags().StringVar(&to, "svg", "docs/transitions.svg", "SVG file to write")
	return c
}

func picture(from, to string) error {
	wire, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	r := &report{}
	if err := json.Unmarshal(wire, r); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	svg, err := drawTransitions(r)
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	return os.WriteFile(to, []byte(svg), 0o644) //nolint:gosec // a page of the documentation
}

// Places on the canvas, in pixels.
const (
	canvasWidth  = 1080.0
	plotLeft     = 64.0
	plotRight    = canvasWidth - 24
	stagesTop    = 84.0
	rankHeight   = 30.0
	expertSize   = 10.0 // maximum
	gapsHeight   = 210.0
	marginBefore = 1500 * time.Millisecond // shown before the first transition
	marginAfter  = 1500 * time.Millisecond // and after the last
)

// canvas collects the elements of a picture.
type canvas struct{ b strings.Builder }

func (c *canvas) rect(x, y, width, height float64, fill string) {
	fmt.Fprintf(&c.b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", x, y, width, height, fill)
}

func (c *canvas) line(x1, y1, x2, y2 float64, stroke string) {
	fmt.Fprintf(&c.b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x1, y1, x2, y2, stroke)
}

func (c *canvas) dot(x, y, radius float64, fill string) {
	fmt.Fprintf(&c.b, `<circle cx="%.1f" cy="%.1f" r="%.1f" fill="%s"/>`+"\n", x, y, radius, fill)
}

// text is anchored at start, middle or end.
func (c *canvas) text(x, y float64, anchor, class, text string) {
	fmt.Fprintf(&c.b, `<text x="%.1f" y="%.1f" text-anchor="%s" class="%s">%s</text>`+"\n", x, y, anchor, class, html.EscapeString(text))
}

// scene is a picture; times in seconds after the stream began.
type scene struct {
	canvas
	r        *report
	from, to float64
}

func (s *scene) x(seconds float64) float64 {
	return plotLeft + (plotRight-plotLeft)*(seconds-s.from)/(s.to-s.from)
}

func (s *scene) at(t time.Time) float64 { return t.Sub(s.r.Stream.Started).Seconds() }

// stage is the time between two transitions, in which the placement does not change.
type stage struct {
	from, to  float64
	placement *placement
}

// drawTransitions draws, above, the experts of one layer on each rank between transitions. Below, on the same time
// axis, it draws the tokens of the long stream, each as high as the time since the previous token.
func drawTransitions(r *report) (string, error) {
	if r.Stream == nil || len(r.Stream.Tokens) < 2 || r.FirstPlacement == nil || len(r.Transitions) == 0 {
		return "", errors.New("the report has no long stream or no placements: only a local run (make try) records them")
	}
	first, last := r.Transitions[0].Record, r.Transitions[len(r.Transitions)-1].Record
	s := &scene{r: r}
	s.from = max(0, s.at(first.Started.Add(-marginBefore)))
	s.to = s.at(last.Ended.Add(marginAfter))
	if !(s.to > s.from) {
		return "", errors.New("the transitions ended before the long stream began")
	}
	stages := []stage{{s.from, s.at(first.Started), r.FirstPlacement}}
	for i, t := range r.Transitions {
		if t.Placement == nil {
			return "", fmt.Errorf("transition %q has no placement", t.Name)
		}
		next := s.to
		if i+1 < len(r.Transitions) {
			next = s.at(r.Transitions[i+1].Record.Started)
		}
		stages = append(stages, stage{s.at(t.Record.Ended), next, t.Placement})
	}
	ranks := 0
	for _, g := range stages {
		ranks = max(ranks, len(g.placement.Ranks))
	}
	gapsTop := stagesTop + float64(ranks)*rankHeight + 44
	bottom := gapsTop + gapsHeight
	s.bands(bottom)
	for rank := range ranks {
		s.text(plotLeft-8, stagesTop+float64(rank)*rankHeight+14, "end", "small", fmt.Sprintf("rank %d", rank))
	}
	for _, g := range stages {
		s.stage(g)
	}
	s.gaps(gapsTop, bottom)
	s.text(plotLeft, 20, "start", "title", "A model changes its shape while it serves")
	s.text(plotLeft, bottom+54, "start", "small", fmt.Sprintf("Dots: tokens of one stream. Squares: experts of one layer, colored by expert; stripes: shards of an expert. The run had %s requests and lost %d.", thousands(r.Requests), r.Lost))
	height := bottom + 68
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" viewBox="0 0 %.0f %.0f" role="img">
<title>Experts on ranks, and the tokens of one stream, across %d transitions</title>
<style>text{font-family:sans-serif;font-size:12px;fill:#222}.small{font-size:11px;fill:#555}.title{font-size:15px;font-weight:bold}.alert{font-weight:bold;fill:#b00020}</style>
<rect width="100%%" height="100%%" fill="#ffffff"/>
`, canvasWidth, height, canvasWidth, height, len(r.Transitions)) + s.b.String() + "</svg>\n", nil
}

// bands mark the transitions in both parts.
func (s *scene) bands(bottom float64) {
	for _, t := range s.r.Transitions {
		from, to := s.x(s.at(t.Record.Started)), s.x(s.at(t.Record.Ended))
		s.rect(from, stagesTop-22, to-from, bottom-stagesTop+22, "#e8eaed")
		s.text((from+to)/2, stagesTop-42, "middle", "label", t.Name)
		s.text((from+to)/2, stagesTop-28, "middle", "small", mb(t.moved())+" MB")
	}
}

// stage draws the experts of each rank in two rows: whole ones as squares, sharded ones as stripes.
func (s *scene) stage(g stage) {
	left, width := s.x(g.from)+4, s.x(g.to)-s.x(g.from)-8
	name, share := "EP", 1.0
	if g.placement.Shards > 1 {
		name, share = "TP", 1/float64(g.placement.Shards)
	}
	s.text(left+width/2, stagesTop-6, "middle", "small", fmt.Sprintf("%s, %d ranks", name, len(g.placement.Ranks)))
	experts, columns := 0, 1
	for _, held := range g.placement.Ranks {
		columns = max(columns, (len(held)+1)/2)
		for _, e := range held {
			experts = max(experts, e+1)
		}
	}
	pitch := min((expertSize+1)*math.Sqrt(share), width/float64(columns)) // so that stripes stay visible
	left += (width - pitch*float64(columns)) / 2
	for rank, held := range g.placement.Ranks {
		for i, e := range held {
			x, y := left+pitch*float64(i%columns), stagesTop+float64(rank)*rankHeight+float64(i/columns)*(expertSize+1)
			s.rect(x, y, pitch*.88, expertSize, colorOf(e, experts))
		}
	}
}

// gaps draws the tokens of the stream and marks the longest gap.
func (s *scene) gaps(top, bottom float64) {
	tokens := s.r.Stream.Tokens
	longest, at := 0.0, 0
	for i := 1; i < len(tokens); i++ {
		if gap := tokens[i] - tokens[i-1]; gap > longest && tokens[i] >= s.from && tokens[i] <= s.to {
			longest, at = gap, i
		}
	}
	tick := niceTick(longest * 1e3 / 4)
	top1 := tick * math.Ceil(max(longest*1e3*1.1, tick)/tick) // ms at the top
	y := func(ms float64) float64 { return bottom - (bottom-top)*ms/top1 }
	for ms := 0.0; ms <= top1+tick/2; ms += tick {
		s.line(plotLeft, y(ms), plotRight, y(ms), "#d0d3d8")
		s.text(plotLeft-8, y(ms)+4, "end", "small", fmt.Sprintf("%g", ms))
	}
	s.text(plotLeft, top-10, "start", "label", "time since the previous token of the stream, ms")
	step := niceTick((s.to - s.from) / 12)
	for t := math.Ceil(s.from/step) * step; t <= s.to; t += step {
		s.line(s.x(t), bottom, s.x(t), bottom+5, "#555555")
		s.text(s.x(t), bottom+19, "middle", "small", fmt.Sprintf("%g", math.Round(t*1e3)/1e3))
	}
	s.text(plotRight, bottom+34, "end", "small", "seconds after the stream began")
	for i := 1; i < len(tokens); i++ {
		if tokens[i] >= s.from && tokens[i] <= s.to {
			s.dot(s.x(tokens[i]), y((tokens[i]-tokens[i-1])*1e3), 1.6, "#1a56a0")
		}
	}
	if at > 0 {
		x, anchor, shift := s.x(tokens[at]), "start", 8.0
		if x > (plotLeft+plotRight)/2 {
			anchor, shift = "end", -8
		}
		s.dot(x, y(longest*1e3), 4, "#b00020")
		s.text(x+shift, y(longest*1e3)-8, anchor, "alert", "longest gap "+milliseconds(longest)+" ms")
	}
	if end := tokens[len(tokens)-1]; end < s.to {
		s.text(s.x(end)+6, bottom-8, "start", "small", "end of the stream")
	}
}

// niceTick is the smallest of 1, 2 and 5 times a power of ten that is not below a positive value.
func niceTick(least float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(max(least, 1e-9))))
	for _, times := range []float64{1, 2, 5} {
		if times*power >= least {
			return times * power
		}
	}
	return 10 * power
}

// colorOf returns an expert's color: hues around the circle, neighbors with different lightness.
func colorOf(expert, experts int) string {
	hue, light := 360*float64(expert)/float64(experts), .48+.14*float64(expert%2)
	channel := func(n float64) int {
		k := math.Mod(n+hue/30, 12)
		return int(math.Round(255 * (light - .62*min(light, 1-light)*max(-1, min(k-3, 9-k, 1)))))
	}
	return fmt.Sprintf("#%02x%02x%02x", channel(0), channel(8), channel(4))
}
