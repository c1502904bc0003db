package main

import (
	"errors"
	"os"

	"tangram.dev/operator/pkg/simplot"
	"tangram.dev/operator/pkg/simulator"
)

// drawBursts draws real runs like the simulator's.
func drawBursts(path string, runs []*burstRun) (err error) {
	var all []simplot.Played
	for _, r := range runs {
		p := simplot.Played{Policy: r.Way}
		for _, x := range r.results {
			n := len(x.Tokens)
			if x.Err != nil || n == 0 {
				continue
			}
			answer := simulator.Answer{Arrival: x.Sent.Sub(r.start).Seconds(), First: x.Tokens[0].At.Sub(x.Sent).Seconds(), Rest: x.Tokens[n-1].At.Sub(x.Tokens[0].At).Seconds(), Output: n}
			p.Answers = append(p.Answers, answer)
			p.Makespan = max(p.Makespan, answer.Arrival+answer.First+answer.Rest)
		}
		for _, x := range r.readings {
			if at := x.at.Sub(r.start).Seconds(); at >= 0 {
				p.Samples = append(p.Samples, simulator.Sample{At: at, Mode: x.shape.String(), Running: x.running, Waiting: x.waiting})
			}
		}
		all = append(all, p)
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return simplot.Draw(file, all)
}
