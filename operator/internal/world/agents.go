package world

import (
	"context"
	"fmt"
	"sync"
	"time"

	"tangram.dev/operator/internal/driver"
	"tangram.dev/operator/pkg/member"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// connection to the agent of a pod, with its last report.
type connection struct {
	key, address string
	named        bool // the endpoint named its pod
	agent        Agent
	cancel       context.CancelFunc // ends its watch

	// Under World.mu.
	pod    string // UID; empty: not known yet
	asking int    // queries in progress
	known  bool   // a query succeeded or failed
	heard  uint64 // number of the query that was answered last
	mark   string // of status
	status *tangramv1.StatusResponse
	err    error
}

const (
	// answerWithin is the default of Worlds.AnswerWithin.
	answerWithin = 2 * time.Second
	// releaseWithin is the time to release all agents of an ended world. Others wait for their grace period.
	releaseWithin = 2 * time.Second
	// lookFast is the query interval while something is wrong.
	lookFast = 100 * time.Millisecond
	// watchAgain is the pause after an agent's stream ended.
	watchAgain = 200 * time.Millisecond
)

// SetEndpoints connects to new agents and disconnects from removed ones. complete: there are no others, so a member
// whose pod is not among them is lost.
func (w *World) SetEndpoints(endpoints []Endpoint, complete bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	here := map[string]string{}
	for _, e := range endpoints {
		here[e.key()] = e.Address
	}
	changed := complete != w.complete
	w.complete = complete
	for uid, c := range w.agents {
		if here[uid] != c.address {
			c.cancel()
			_ = c.agent.Close() // its pod is gone, so an error does not matter
			delete(w.agents, uid)
			changed = true
		}
	}
	for _, e := range endpoints {
		if w.agents[e.key()] != nil || w.closing {
			continue
		}
		agent, err := w.dial(e.Address)
		if err != nil {
			w.log.Error("cannot dial an agent", "address", e.Address, "error", err)
			continue
		}
		ctx, cancel := context.WithCancel(w.ctx)
		c := &connection{key: e.key(), pod: e.UID, named: e.UID != "", address: e.Address, agent: agent, cancel: cancel}
		w.agents[c.key] = c
		w.wait.Go(func() { w.follow(ctx, c) })
		changed = true
	}
	if changed {
		w.last.Looked = false
		w.heard = ""
		w.pokeLocked()
	}
}

func (w *World) pokeLocked() {
	select {
	case w.poke <- struct{}{}:
	default:
	}
}

// follow reads an agent's stream. It queries the agent after any change and when the stream ends. Only the answers
// count, because they are ordered; a stream message is a hint.
func (w *World) follow(ctx context.Context, c *connection) {
	for ctx.Err() == nil {
		w.ask(ctx, c)
		_ = c.agent.Watch(ctx, w.name, func(s *tangramv1.StatusResponse) {
			mark := markOfAgent(s)
			w.mu.Lock()
			news := c.mark != mark
			w.mu.Unlock()
			if news {
				w.ask(ctx, c)
			}
		})
		if ctx.Err() != nil {
			return
		}
		w.ask(ctx, c) // it may be dead
		select {
		case <-ctx.Done():
		case <-time.After(watchAgain):
		}
	}
}

// ask queries an agent once, and stores its answer unless a later query was answered meanwhile.
func (w *World) ask(ctx context.Context, c *connection) {
	w.mu.Lock()
	w.asked++
	number := w.asked
	c.asking++
	w.mu.Unlock()
	within, cancel := context.WithTimeout(ctx, w.answerWithin)
	defer cancel()
	status, err := c.agent.Status(within, w.name)
	if err == nil && status.World != w.name {
		status, err = nil, fmt.Errorf("agent %s is of world %q, not %q", c.address, status.World, w.name)
	}
	mark := "silent"
	if err == nil {
		mark = markOfAgent(status)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	c.asking--
	if number < c.heard || ctx.Err() != nil {
		return
	}
	news := !c.known || mark != c.mark
	c.known, c.heard, c.mark, c.status, c.err = true, number, mark, status, err
	if ranks := status.GetRanks(); !c.named && len(ranks) > 0 {
		c.pod = member.PodOf(ranks[0].GetMember().GetId())
	}
	if news && w.agents[c.key] == c {
		w.pokeLocked()
	}
}

// watch queries the agents periodically, and judges their reports.
func (w *World) watch() {
	tick := time.NewTicker(min(w.lookEvery, lookFast))
	defer tick.Stop()
	var asked time.Time
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-w.poke:
		case <-tick.C:
			if time.Since(asked) >= w.pace() {
				asked = time.Now()
				w.askAll()
			}
		}
		w.judge(false)
	}
}

// pace returns the query interval: shorter while something is wrong.
func (w *World) pace() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last.NeedsRepair() || len(w.last.Errors) > 0 {
		return min(w.lookEvery, lookFast)
	}
	return w.lookEvery
}

// askAll queries all agents without a query in progress, so that an agent that is cut off delays no other.
func (w *World) askAll() {
	for _, c := range w.connections() {
		w.mu.Lock()
		busy := c.asking > 0
		w.mu.Unlock()
		if !busy {
			w.wait.Go(func() { w.ask(w.ctx, c) })
		}
	}
}

// look queries all agents now, with a timeout, and judges.
func (w *World) look(ctx context.Context, within time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var wait sync.WaitGroup
	for _, c := range w.connections() {
		wait.Go(func() { w.ask(ctx, c) })
	}
	wait.Wait()
	w.judge(true)
}

func (w *World) connections() []*connection {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]*connection, 0, len(w.agents))
	for _, c := range w.agents {
		out = append(out, c)
	}
	return out
}

// release releases all ranks: the world has ended, and no pod has to wait to leave it.
func (w *World) release(ctx context.Context, why string) {
	var wait sync.WaitGroup
	for _, c := range w.connections() {
		wait.Go(func() {
			status, err := c.agent.Status(ctx, w.name)
			if err != nil {
				return // it is dead, or its pod's grace period ends
			}
			var members []string
			for _, r := range status.Ranks {
				members = append(members, r.GetMember().GetId())
			}
			header := &tangramv1.Header{World: w.name, Epoch: status.Epoch + 1}
			if err := c.agent.Release(ctx, header, members, true, why); err != nil {
				w.log.Warn("cannot release an agent, its pod waits for its grace period", "agent", c.address, "error", err)
			}
		})
	}
	wait.Wait()
}

// remembered is an agent that answers with its last report.
type remembered struct {
	driver.Agent
	status *tangramv1.StatusResponse
	err    error
}

// Status makes no call.
func (r remembered) Status(context.Context, string) (*tangramv1.StatusResponse, error) {
	return r.status, r.err
}
