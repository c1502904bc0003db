package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

const (
	longestStream = 3072                   // tokens of the long stream
	settle        = 300 * time.Millisecond // after a transition: gaps that began in it have ended by then
	perTransition = 5 * time.Second        // reserved in the long stream's length
	usualGap      = 40 * time.Millisecond  // on two cores
)

// clientView describes the clients' view of a period in one line.
func clientView(c *load.Counters, from, to time.Time) string {
	var longest time.Duration
	for _, g := range c.Gaps(from, to) {
		longest = max(longest, g.To.Sub(g.From))
	}
	return fmt.Sprintf("longest inter-token gap %s ms, %d requests lost", milliseconds(longest.Seconds()), c.Now().Lost)
}

// longRequest lasts for all transitions. It assumes tokens at their present rate or faster: the first steps compute
// prompts and are slower than usual.
func longRequest(o options, c *load.Counters) load.Request {
	var seconds []float64
	for _, g := range c.Gaps(time.Time{}, time.Now()) {
		seconds = append(seconds, g.To.Sub(g.From).Seconds())
	}
	gap := max(usualGap, o.leastStep).Seconds()
	if len(seconds) > 0 {
		gap = min(gap, median(seconds))
	}
	whole := time.Duration(len(steps(o.ranks, o.joiners()))) * (o.pause + perTransition)
	r := load.Request{Index: -1, MaxTokens: min(int(whole.Seconds()/max(gap, 1e-4)), longestStream), TopP: 1}
	for i := range 32 {
		r.Prompt = append(r.Prompt, uint32(1+i*7%250))
	}
	return r
}

// stream is one request, as in the report.
type stream struct {
	Started time.Time `json:"started"`
	// Tokens are arrival times, seconds after Started.
	Tokens []float64 `json:"token_seconds"`
}

func newStream(r *load.Result) *stream {
	s := &stream{Started: r.Sent}
	for _, t := range r.Tokens {
		s.Tokens = append(s.Tokens, float64(t.At.Sub(r.Sent).Microseconds())/1e6)
	}
	return s
}

// placement shows the experts of the first MoE layer, as in the report.
type placement struct {
	// Shards is the number of ranks that share an expert.
	Shards int `json:"shards_per_expert"`
	// Ranks lists the experts of which each rank holds a shard, ascending.
	Ranks [][]int `json:"experts_by_rank"`
}

func placementOf(l *tangramv1.Layout) *placement {
	for _, layer := range l.GetLayers() {
		if layer.ExpertGroupSize == 0 {
			continue
		}
		p := &placement{Shards: int(layer.ExpertGroupSize), Ranks: make([][]int, len(l.Members))}
		for _, group := range layer.Experts {
			for _, slot := range group.Slots {
				if slot == 0 {
					continue
				}
				for _, rank := range group.Ranks {
					p.Ranks[rank] = append(p.Ranks[rank], int(slot)-1)
				}
			}
		}
		for _, experts := range p.Ranks {
			slices.Sort(experts)
		}
		return p
	}
	return nil
}

// placementNow returns the present placement of a local world.
func placementNow(ctx context.Context, w *harness.World) (*placement, error) {
	agents, err := w.Status(ctx)
	if err != nil {
		return nil, err
	}
	var newest *tangramv1.Layout
	for _, a := range agents {
		if a.Layout.GetEpoch() > newest.GetEpoch() {
			newest = a.Layout
		}
	}
	if p := placementOf(newest); p != nil {
		return p, nil
	}
	return nil, errors.New("no agent reports a layout with experts")
}
