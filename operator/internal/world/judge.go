package world

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"tangram.dev/operator/internal/driver"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

const (
	// judgeAgain: interval at which unchanged reports are compared with the records again.
	judgeAgain = time.Second
	recordsIn  = 2 * time.Second // timeout of reading the records
)

// errNotAsked: the agent's state is not known yet.
var errNotAsked = errors.New("not queried yet")

// judge reads the agents' latest reports against the records. It notifies the controller of changes. Without news it
// does nothing, unless forced.
func (w *World) judge(force bool) {
	w.judging <- struct{}{}
	defer func() { <-w.judging }()
	w.mu.Lock()
	next := Snapshot{Looked: true, Statuses: map[string]*tangramv1.StatusResponse{}, Errors: map[string]error{}}
	var agents []driver.Agent
	var pods, heard []string
	for _, uid := range slices.Sorted(maps.Keys(w.agents)) {
		c := w.agents[uid]
		next.Looked = next.Looked && c.known
		switch {
		case !c.known: // it may have a member that the others lack
			agents, pods = append(agents, remembered{c.agent, nil, errNotAsked}), append(pods, c.pod)
			continue
		case c.err != nil:
			next.Errors[uid] = c.err
		default:
			next.Statuses[uid] = c.status
		}
		agents, pods = append(agents, remembered{c.agent, c.status, c.err}), append(pods, c.pod)
		heard = append(heard, uid+" "+c.mark)
	}
	complete := w.complete
	slices.Sort(heard)
	text := strings.Join(heard, "\n")
	calm := !w.last.NeedsRepair() && w.running == nil
	if !force && text == w.heard && w.last.Looked == next.Looked && (calm || time.Since(w.judgedAt) < judgeAgain) {
		w.mu.Unlock()
		return
	}
	before := w.last.Outcasts
	// Reports from different moments of a running flip may not fit together. After it all agents are queried again
	// (force).
	flipping := !force && w.run != nil && w.run.kind != repairing
	w.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), recordsIn)
	defer cancel()
	w.read(ctx, &next, agents, pods, complete, flipping, before)
	mark := markOf(&next)
	w.mu.Lock()
	for uid := range next.Errors { // a pod that went meanwhile is no error
		if w.agents[uid] == nil {
			delete(next.Errors, uid)
		}
	}
	for uid := range w.agents { // a new agent is not known yet
		next.Looked = next.Looked && (next.Statuses[uid] != nil || next.Errors[uid] != nil)
	}
	changed := mark != w.mark || w.last.Looked != next.Looked
	if next.Broken != nil && w.last.Broken == nil {
		w.log.Warn("world needs a repair", "error", next.Broken)
	}
	w.last, w.mark, w.heard, w.judgedAt = next, mark, text, time.Now()
	if next.Broken != nil && w.run != nil && w.run.kind != repairing && w.running != nil && w.running.Phase == phasePlan {
		w.run.cancel() // its wait is useless; once a flip runs, the driver detects the loss itself
	}
	w.measureLocked()
	w.mu.Unlock()
	if changed && w.ctx.Err() == nil {
		w.notify()
	}
}

// read reads the agents' reports against the records of the world.
func (w *World) read(ctx context.Context, next *Snapshot, agents []driver.Agent, pods []string, complete, flipping bool, outcasts map[string]time.Time) {
	look, err := (&driver.Driver{World: w.name, Agents: agents, Pods: pods, Complete: complete, Store: w.store, Log: w.log}).Look(ctx)
	next.Layout, next.Epoch, next.Hash = look.Layout, look.Epoch, look.Hash
	if err != nil { // no agent answers, agents contradict each other, or the records cannot be read
		if len(next.Statuses) > 0 {
			w.log.Warn("cannot compare agent states with the records", "error", err)
		}
		return
	}
	if look.Broken && (!look.Lagging || !flipping) {
		next.Broken = look.Trouble
	}
	next.Unfinished = look.Unfinished
	next.Unseen = look.Layout == nil && look.Trouble != nil && !look.Broken
	if len(look.Outcasts) > 0 && (look.Trouble == nil || next.Broken != nil) {
		next.Outcasts = map[string]time.Time{}
		for _, id := range look.Outcasts {
			next.Outcasts[id] = time.Now()
			if since, known := outcasts[id]; known {
				next.Outcasts[id] = since
			}
		}
	}
}

// headroom of one layout, computed in the background: it takes as long as planning a repair of every rank.
type headroom struct {
	hash    []byte
	result  *planner.HeadroomResult
	err     error
	running bool
}

func (h *headroom) of(hash []byte) (*planner.HeadroomResult, error) {
	if len(hash) == 0 || !bytes.Equal(h.hash, hash) {
		return nil, nil
	}
	return h.result, h.err
}

func (w *World) measureLocked() {
	s := w.last
	if s.Layout == nil || w.room.running || bytes.Equal(w.room.hash, s.Hash) || w.closing {
		return
	}
	w.room.running = true
	w.wait.Go(func() {
		result, err := measure(&s)
		w.mu.Lock()
		w.room = headroom{hash: s.Hash, result: result, err: err}
		w.pokeLocked() // another layout may have come
		w.mu.Unlock()
		if w.ctx.Err() == nil {
			w.notify()
		}
	})
}

func measure(s *Snapshot) (*planner.HeadroomResult, error) {
	in := planner.HeadroomInput{Layout: s.Layout}
	for _, status := range s.Statuses {
		if in.Geometry == nil {
			view, err := geometry.New(status.Geometry)
			if err != nil {
				return nil, fmt.Errorf("headroom: %w", err)
			}
			in.Geometry = view
		}
		for _, r := range status.Ranks {
			if layout.RankOf(s.Layout, r.GetMember().GetId()) >= 0 {
				in.Members = append(in.Members, planner.Member{Member: r.Member, MemoryBytes: r.MemoryBytes})
			}
		}
	}
	return planner.Headroom(in)
}
