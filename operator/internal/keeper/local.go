package keeper

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"tangram.dev/operator/internal/driver"
	"tangram.dev/operator/internal/store"
	"tangram.dev/operator/internal/world"
	"tangram.dev/operator/pkg/fleet"
	"tangram.dev/operator/pkg/member"
)

// Local keeps a world of agents at known addresses, without a cluster. It creates and deletes no pods. To pkg/fleet,
// each place of a rank (pod and device) is a pod, so Wanted.Pods counts ranks. Only one Local per world should run; two
// do no harm.
type Local struct {
	World string
	Store store.Store
	Dial  world.Dialer
	// Agents returns the current addresses, in the order in which ranks join. complete: there are no other agents, so a
	// member that none of them has is lost.
	Agents func() (addresses []string, complete bool, err error)
	Wanted Wanted
	// Did receives each repair and apply that did something or failed; one call at a time for each kind.
	Did func(what string, record *driver.Record, err error)
	Log *slog.Logger
}

const (
	// lookForAgents: interval at which the addresses are read. A notification causes a read, too.
	lookForAgents = 200 * time.Millisecond
	// closeWithin: time for the running transition to end or abort.
	closeWithin = 10 * time.Second
)

// Run runs until ctx ends. It survives every error.
func (l *Local) Run(ctx context.Context) {
	worlds := &world.Worlds{Log: l.Log}
	told := make(chan struct{}, 1)
	w := worlds.Open("local", l.World, l.Dial, l.Store, func() {
		select {
		case told <- struct{}{}:
		default:
		}
	})
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
		defer cancel()
		worlds.CloseAll(closing)
	}()
	k := &Keeper{World: w, Wanted: l.Wanted, Record: localRecorders{l}, PodOf: placeOf}
	failed := ""
	for ctx.Err() == nil {
		again, err := l.round(k)
		if err != nil && err.Error() != failed {
			l.Log.Warn("round failed, trying again", "error", err)
		}
		failed = fmt.Sprint(err)
		if again == 0 {
			again = lookForAgents
		}
		select {
		case <-ctx.Done():
		case <-told:
		case <-time.After(min(again, lookForAgents)):
		}
	}
}

func (l *Local) round(k *Keeper) (time.Duration, error) {
	addresses, complete, err := l.Agents()
	if err != nil {
		return 0, err
	}
	var endpoints []world.Endpoint
	for _, address := range addresses {
		endpoints = append(endpoints, world.Endpoint{Address: address})
	}
	k.World.SetEndpoints(endpoints, complete)
	seen := k.World.Snapshot()
	if len(addresses) > 0 {
		k.Repair(&seen)
	}
	r := k.Decide(seen, Facts{Pods: places(addresses, &seen), Agents: len(addresses) > 0, Unknown: seen.Unseen})
	k.Act(&r)
	return r.Again, nil
}

// placeOf returns the place of a member, as a pod of pkg/fleet.
func placeOf(id string) string {
	parsed, err := member.Parse(id)
	if err != nil {
		return ""
	}
	return parsed.Place().String()
}

// places returns the places of ranks, as pods: those of the active layout by rank, then those that could join now, then
// the others. A place without a report is not lost for that reason; Snapshot.Broken reports losses.
func places(addresses []string, seen *world.Snapshot) []fleet.Pod {
	at := map[string]int{}
	var out []fleet.Pod
	add := func(place string, members []string) {
		if i, there := at[place]; there {
			if members != nil {
				out[i].Members = members
			}
			return
		}
		at[place] = len(out)
		out = append(out, fleet.Pod{Name: place, UID: place, Ordinal: len(out), Members: members})
	}
	for _, m := range seen.Layout.GetMembers() {
		add(placeOf(m.Id), nil)
	}
	for _, now := range []bool{true, false} {
		for _, address := range addresses {
			for _, r := range seen.Statuses[address].GetRanks() {
				id := r.GetMember().GetId()
				switch {
				case now && ready(r, seen.Outcasts):
					add(placeOf(id), []string{id})
				case !now:
					add(placeOf(id), nil)
				}
			}
		}
	}
	return out
}

// localRecorders report the runs and save the records in the store.
type localRecorders struct{ l *Local }

func (r localRecorders) Repair(*world.Snapshot) world.Recorder {
	return &localRecorder{r.l, "repair"}
}

func (r localRecorders) Transition(*world.Snapshot, []string) world.Recorder {
	return &localRecorder{r.l, "apply"}
}

func (r localRecorders) Rebalance(*world.Snapshot, []string) world.Recorder {
	return &localRecorder{r.l, "apply"}
}

type localRecorder struct {
	l    *Local
	what string
}

func (*localRecorder) Planned(*driver.Record) error { return nil }
func (*localRecorder) Progress(driver.Event)        {}
func (*localRecorder) FlipDone(driver.FlipRecord)   {}

func (r *localRecorder) Ended(ctx context.Context, record *driver.Record, err error) {
	if record.PlanHash != "" || record.WorldEnded != "" {
		if saving := driver.SaveTo(r.l.Store)(ctx, record); saving != nil {
			r.l.Log.Error("cannot save a record", "record", r.what, "error", saving)
		}
	}
	// Also reported: it only ended another driver's attempt. Agents take a run of flips to its end by themselves.
	if err != nil || len(record.Flips) > 0 || record.Retries > 0 || len(record.Lost) > 0 || record.WorldEnded != "" {
		r.l.Did(r.what, record, err)
	}
}
