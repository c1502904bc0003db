package simulator

import (
	"cmp"
	"fmt"
	"slices"

	"tangram.dev/operator/pkg/kernels"
)

// change to another mode between two steps: all requests wait for the transition. Live requests are redistributed, the
// longest first, each to the group with most room, as the engines' KV plan does. Cached prefixes without a live request
// are not migrated.
func (w *world) change(to int) error {
	if to == w.mode {
		return fmt.Errorf("simulator: it is in mode %v already", w.shape())
	}
	var order []int32
	for i := range w.live {
		if w.live[i].request >= 0 {
			order = append(order, int32(i))
		}
	}
	need := func(i int32) int {
		q := &w.requests[w.live[i].request]
		return q.Prompt + q.Output
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(need(b), need(a)) })
	capacity := w.c.Modes[to].GroupTokens
	groups := w.c.Modes[to].Truth.Shape().Groups()
	reserved, homes := make([]int, groups), make([]int32, len(w.live))
	tokens := w.counts.ContextTokens
	for _, i := range order {
		g := slices.Index(reserved, slices.Min(reserved))
		reserved[g] += need(i)
		if reserved[g] > capacity {
			return fmt.Errorf("simulator: mode %v: %d requests with %d tokens of KV do not fit its %d groups of %d", w.c.Modes[to].Truth.Shape(), len(order), w.counts.Reserved, groups, capacity)
		}
		homes[i] = int32(g)
		if !w.live[i].decodes {
			tokens += w.live[i].done
		}
	}
	stall, _ := w.c.Rates.Stall(w.c.Switches[w.mode][to], tokens, 0)
	for i := range w.groups {
		w.lost += w.groups[i].cache.size() * BlockTokens
	}
	w.mode = to
	w.regroup()
	w.now += stall
	w.stalled += stall
	w.switches++
	// In order of arrival, so that prompts keep their turn.
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(w.live[a].request, w.live[b].request) })
	for _, i := range order {
		r := &w.live[i]
		r.group = homes[i]
		g := &w.groups[r.group]
		q := &w.requests[r.request]
		g.reserved += q.Prompt + q.Output
		if r.decodes {
			g.decoding++
			continue
		}
		g.queued += q.Prompt - r.done
		g.queue = append(g.queue, i)
	}
	for _, e := range w.ends {
		r := &w.live[e.live]
		q := &w.requests[r.request]
		w.groups[r.group].context += q.Prompt + q.Output - int(e.step-w.counts.Steps)
	}
	return nil
}

// regroup creates empty groups for the mode.
func (w *world) regroup() {
	n := w.c.Modes[w.mode].Truth.Shape().Groups()
	w.groups = make([]group, n)
	for i := range w.groups {
		w.groups[i].cache = newCache()
	}
	w.view, w.shares, w.loads, w.cached = make([]Group, n), make([]int, n), make([]kernels.Load, n), make([]int, n)
}
