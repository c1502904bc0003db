package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"tangram.dev/api/v1alpha2"
	"tangram.dev/e2e/kube"
	"tangram.dev/e2e/load"
)

const (
	redraw   = 250 * time.Millisecond // on a terminal
	plain    = 5 * time.Second        // between lines elsewhere, if nothing changed
	rateSpan = 2 * time.Second        // span of the mean of tokens/s
)

// display shows a world on a cluster while it changes: commands, the load, the layout, the running transition.
type display struct {
	counters *load.Counters
	started  time.Time

	mu      sync.Mutex
	step    string
	command string
	since   time.Time // of the command
	world   *v1alpha2.MoEDeployment
	rates   []sample
}

type sample struct {
	at     time.Time
	tokens int64
}

func newDisplay(counters *load.Counters) *display {
	return &display{counters: counters, started: time.Now(), since: time.Now()}
}

// begin starts a step: "2/4 Expert -> Tensor".
func (d *display) begin(step string) {
	d.mu.Lock()
	d.step = step
	d.mu.Unlock()
	say("step %s", step)
}

// said records the running command.
func (d *display) said(command string) {
	d.mu.Lock()
	d.command, d.since = command, time.Now()
	d.mu.Unlock()
	say("$ %s", command)
}

// run shows the display until ctx ends, then removes its lines.
func (d *display) run(ctx context.Context, k *kube.Client, name string) {
	go func() {
		for ctx.Err() == nil { // after a lost connection the demo continues without the picture
			_ = k.Watch(ctx, name, func(w *v1alpha2.MoEDeployment) {
				d.mu.Lock()
				d.world = w
				d.mu.Unlock()
			})
			_ = sleep(ctx, time.Second)
		}
	}()
	tick := time.NewTicker(redraw)
	defer tick.Stop()
	defer terminal.stop()
	var last string
	var printed time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			lines, changed := d.lines(now)
			if terminal.tty {
				terminal.show(lines...)
			} else if changed != last || now.Sub(printed) >= plain {
				last, printed = changed, now
				say("%s", strings.Join(lines[1:], "; "))
			}
		}
	}
}

// lines returns the lines to show, and a text that differs after every change that needs its own line in a log.
func (d *display) lines(now time.Time) (lines []string, changed string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	counts := d.counters.Now()
	d.rates = append(d.rates, sample{now, counts.Tokens})
	for len(d.rates) > 2 && now.Sub(d.rates[1].at) >= rateSpan {
		d.rates = d.rates[1:]
	}
	oldest, rate := d.rates[0], 0.0
	if span := now.Sub(oldest.at).Seconds(); span > 0 {
		rate = float64(counts.Tokens-oldest.tokens) / span
	}
	lines = []string{
		fmt.Sprintf("  now    %s: %s (%.0f s of %.0f s)", d.step, d.command, now.Sub(d.since).Seconds(), now.Sub(d.started).Seconds()),
		fmt.Sprintf("  load   %4.0f tokens/s, requests %d open, %d done, %d lost", rate, counts.Open, counts.Done, counts.Lost),
	}
	if d.world == nil {
		return append(lines, "  world  not seen yet"), ""
	}
	s := d.world.Status
	lines = append(lines, fmt.Sprintf("  world  epoch %d, %s, %d wide, pods %d ready of %d (%d wanted), %s", s.Epoch, s.Mode, s.Ranks,
		s.ReadyReplicas, s.Replicas, d.world.DesiredReplicas(), s.State))
	changed = lines[2]
	if degraded := meta.FindStatusCondition(s.Conditions, v1alpha2.ConditionDegraded); degraded != nil && degraded.Status == "True" {
		lines[2] += ": " + degraded.Message
		changed += degraded.Reason
	}
	if t := s.Transition; t != nil {
		lines = append(lines, fmt.Sprintf("  moves  %s, flip %d of %d, %-9s %s %s of %s", t.Name, t.Flip, t.Flips, t.Phase, bar(t.BytesDone, t.BytesTotal),
			mib(uint64(t.BytesDone)), mib(uint64(t.BytesTotal))))
		changed += fmt.Sprint(t.Name, t.Flip, t.Phase)
	}
	return lines, changed
}

// bar draws a progress bar of twenty characters.
func bar(done, total int64) string {
	const width = 20
	full := 0
	if total > 0 {
		full = int(min(max(done, 0), total) * width / total)
	}
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", width-full) + "]"
}
