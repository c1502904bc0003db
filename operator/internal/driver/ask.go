package driver

import (
	"context"
	"fmt"
	"time"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// answerSoon is the timeout for an agent if all members that have answered are stopped and report no connection to any
// of the others. Then the agent is not slow: it is cut off or has no power.
const answerSoon = 500 * time.Millisecond

// question is a status query to an agent.
type question struct {
	begun  time.Time
	slow   bool          // the query before it timed out: do not wait for this one
	done   chan struct{} // closed with the answer
	status *tangramv1.StatusResponse
	err    error
	late   bool // the limit passed without an answer
}

func (d *Driver) question(ctx context.Context, agent Agent, slow bool) *question {
	q := &question{begun: time.Now(), slow: slow, done: make(chan struct{})}
	go func() {
		defer close(q.done)
		ctx, cancel := context.WithTimeout(ctx, d.Limits.answer())
		defer cancel()
		q.status, q.err = agent.Status(ctx, d.World)
		q.late = q.err != nil && time.Since(q.begun) >= d.Limits.answer()
	}()
	return q
}

func (q *question) answered() bool {
	select {
	case <-q.done:
		return true
	default:
		return false
	}
}

// ask queries every agent. The timeout is Limits.Answer, or answerSoon if givenUp. An agent that timed out is not
// waited for again until it has answered; its answer to an earlier query does not count.
func (d *Driver) ask(ctx context.Context, record Membership) (*truth, error) {
	began, asked := time.Now(), make([]*question, len(d.Agents))
	old := map[int]bool{}
	for i, agent := range d.Agents {
		late := d.late[i]
		if old[i] = late != nil && !late.answered(); old[i] {
			asked[i] = late
		} else {
			asked[i] = d.question(ctx, agent, late != nil && late.err != nil) // nil: it answered meanwhile
		}
	}
	look := time.NewTicker(answerSoon / 5)
	defer look.Stop()
	waiting := func(q *question) bool { return !q.slow && !q.answered() }
	anew := map[int]*question{}
	for i := 0; i < len(asked); {
		if !waiting(asked[i]) || time.Since(began) >= answerSoon && givenUp(asked) {
			i++
			continue
		}
		select {
		case <-asked[i].done:
		case <-look.C:
			// Answers from before that agent stopped answering may be stale by now.
			for j, q := range asked {
				switch again := anew[j]; {
				case again != nil && again.answered() && again.err == nil:
					asked[j] = again
					delete(anew, j)
				case again == nil && q.answered() && q.err == nil && !q.slow && time.Since(q.begun) >= answerSoon:
					anew[j] = d.question(ctx, d.Agents[j], false)
				}
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	d.late = map[int]*question{}
	statuses, errs := make([]*tangramv1.StatusResponse, len(d.Agents)), make([]error, len(d.Agents))
	for i, q := range asked {
		switch {
		case !q.answered() || old[i]:
			q.slow = true
			errs[i] = fmt.Errorf("agent %s: no response within %v", d.Agents[i].Address(), time.Since(began).Round(time.Millisecond))
		default:
			statuses[i], errs[i] = q.status, q.err
			q.slow = q.late || q.slow && q.err != nil
		}
		if q.slow {
			d.late[i] = q
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return newTruth(d.World, record, d.Pods, statuses, errs)
}

// givenUp: all members that have answered are stopped and reach none of the members that have not.
func givenUp(asked []*question) bool {
	here := map[string]bool{}
	for _, q := range asked {
		if q.answered() {
			for _, r := range q.status.GetRanks() {
				here[r.GetMember().GetId()] = true
			}
		}
	}
	members := 0
	for _, q := range asked {
		if !q.answered() || q.status.GetLayout() == nil {
			continue
		}
		l := q.status.Layout
		for _, r := range q.status.Ranks {
			if !r.GetInWorld() {
				continue
			}
			members++
			unreachable := map[uint32]bool{}
			for _, rank := range r.GetEngine().GetUnreachable() {
				unreachable[rank] = true
			}
			for rank, m := range l.Members {
				if !r.GetEngine().GetStopped() || !here[m.Id] && !unreachable[uint32(rank)] {
					return false
				}
			}
		}
	}
	return members > 0
}
