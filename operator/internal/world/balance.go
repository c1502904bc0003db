package world

import (
	"bytes"
	"context"
	"sync"
	"time"

	"tangram.dev/operator/internal/balance"
	"tangram.dev/operator/internal/driver"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// balancing has the load measurements of a world, and their latest report.
type balancing struct {
	changed chan struct{} // other settings

	// Under World.mu.
	settings *balance.Settings // nil: experts stay where they are
	report   *balance.Report

	booked sync.Mutex // guards book; never taken under World.mu
	book   *balance.Book
}

// SetRebalance sets how experts follow the load; nil: they do not, and the measurements are dropped.
func (w *World) SetRebalance(s *balance.Settings) {
	w.mu.Lock()
	was := w.load.settings
	same := was == nil && s == nil || was != nil && s != nil && *was == *s
	if s != nil {
		now := *s
		s = &now
	}
	w.load.settings = s
	if s == nil {
		w.load.report = nil
		w.shifts.reset()
	}
	w.mu.Unlock()
	if !same {
		select {
		case w.load.changed <- struct{}{}:
		default:
		}
	}
}

// balance reads the load at the end of each window.
func (w *World) balance() {
	for {
		w.mu.Lock()
		settings := w.load.settings
		w.mu.Unlock()
		var end <-chan time.Time
		if settings != nil {
			w.lookAtLoad(settings) // the first call starts a window
			end = time.After(settings.Every)
		} else {
			w.load.booked.Lock()
			w.load.book = nil
			w.load.booked.Unlock()
		}
		select {
		case <-w.ctx.Done():
			return
		case <-w.load.changed:
		case <-end:
		}
	}
}

// lookAtLoad queries the load of all members and evaluates it, unless a run is in progress or due.
func (w *World) lookAtLoad(settings *balance.Settings) {
	counts, whole := w.counts()
	w.mu.Lock()
	s := w.last
	idle := w.run == nil && !w.closing && !s.NeedsRepair()
	w.mu.Unlock()
	if !whole || !idle || s.Layout == nil {
		return // the window continues
	}
	m := &balance.Moment{At: time.Now(), World: w.name, Layout: s.Layout, Hash: s.Hash, Counts: counts}
	for _, status := range s.Statuses {
		m.Geometry = status.Geometry
		for _, r := range status.Ranks {
			if layout.RankOf(s.Layout, r.GetMember().GetId()) >= 0 {
				m.Ranks = append(m.Ranks, r)
			}
		}
	}
	w.load.booked.Lock()
	if w.load.book == nil {
		w.load.book = &balance.Book{}
	}
	report := w.load.book.Look(m, *settings)
	w.load.booked.Unlock()
	w.mu.Lock()
	if w.load.settings != nil {
		w.load.report = report
		if report.Outcome == balance.Stay || report.Outcome == balance.NotWorth || report.Outcome == balance.NotExpert {
			w.shifts.reset() // a failed rebalance is no longer wanted
		}
	}
	w.mu.Unlock()
	if w.ctx.Err() == nil {
		w.notify()
	}
}

// counts returns the counters of all members of the active layout; false if one does not answer.
func (w *World) counts() (map[string]balance.Counts, bool) {
	var mu sync.Mutex
	out := map[string]balance.Counts{}
	var wait sync.WaitGroup
	for _, c := range w.connections() {
		wait.Go(func() {
			ctx, cancel := context.WithTimeout(w.ctx, w.answerWithin)
			defer cancel()
			answer, err := c.agent.Load(ctx, w.name)
			if err != nil {
				return // a missing member is detected below
			}
			mu.Lock()
			defer mu.Unlock()
			for _, r := range answer.Ranks {
				out[r.Member] = balance.Counts{Routed: r.Tokens, Executed: r.Executed}
			}
		})
	}
	wait.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	members := map[string]balance.Counts{}
	for _, m := range w.last.Layout.GetMembers() {
		counts, heard := out[m.Id]
		if !heard {
			return nil, false
		}
		members[m.Id] = counts
	}
	return members, true
}

// learn uses a successful run: its transfer rate, and after a rebalance, the promised gain.
func (w *World) learn(goal Goal, before *tangramv1.Layout, record *driver.Record) {
	w.load.booked.Lock()
	defer w.load.booked.Unlock()
	book := w.load.book
	if book == nil {
		return
	}
	book.Moved(record.Bytes.TCP+record.Bytes.Wire+record.Bytes.Shared, record.Seconds.Stage)
	if goal.Rebalance == nil {
		return
	}
	if err := book.Done(time.Now(), goal.Rebalance, before); err != nil {
		w.log.Error("cannot record a rebalance", "error", err)
	}
}

// proposalLocked returns the report, unless its layout is no longer active.
func (w *World) proposalLocked() *balance.Report {
	r := w.load.report
	if r == nil || r.Outcome == balance.Move && !bytes.Equal(r.Layout, w.last.Hash) {
		return nil
	}
	return r
}
