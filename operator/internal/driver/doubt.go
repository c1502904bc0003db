package driver

import (
	"slices"
	"strings"
	"time"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// freshSettle is how long a reattached engine may be unreachable after a repair sent its address to its peers.
const freshSettle = 4 * time.Second

// doubts detects losses during a repair. All its members are stopped and reached each other at the fence. The repair
// would wait for a member that is unresponsive or cut off since then, but the others report a missing connection to it.
// since is the time from which a pair of members has had no connection.
type doubts struct{ since map[[2]string]time.Time }

// apartError says that members of a repair no longer reach each other.
type apartError struct {
	pairs []string
	fresh []string // of these, members with reattached engines, whose addresses were sent
}

func (e *apartError) Error() string { return "during the repair, " + strings.Join(e.pairs, ", ") }
func (e *apartError) Unwrap() error { return ErrNeedsRepair }

// look checks the connections between the members of a repair, whose layout is `before`. It returns an apartError if
// some have been apart for longer than a reconnection takes.
func (d *doubts) look(before *tangramv1.Layout, members map[string]bool, latest map[int]*tangramv1.StatusResponse) error {
	standing := map[string]*tangramv1.EngineStatus{}
	for _, s := range latest {
		for _, r := range s.GetRanks() {
			id := r.GetMember().GetId()
			if _, counted := members[id]; counted && s.GetEpoch() == before.GetEpoch() && r.GetEngine().GetStopped() {
				standing[id] = r.Engine
			}
		}
	}
	was := d.since
	d.since = map[[2]string]time.Time{}
	var out apartError
	for id, engine := range standing {
		if engine.GetAttachedAfterFlip() { // its report is about the connections of its previous engine
			continue
		}
		for _, rank := range engine.GetUnreachable() {
			if int(rank) >= len(before.GetMembers()) {
				continue
			}
			other := before.Members[rank].Id
			if _, counted := standing[other]; !counted {
				continue
			}
			since, known := was[[2]string{id, other}]
			if !known {
				since = time.Now()
			}
			d.since[[2]string{id, other}] = since
			fresh, settle := standing[other].GetAttachedAfterFlip(), hangSettle
			if fresh {
				settle = freshSettle
			}
			if time.Since(since) < settle {
				continue
			}
			out.pairs = append(out.pairs, id+" cannot reach "+other)
			if fresh && !contains(out.fresh, other) {
				out.fresh = append(out.fresh, other)
			}
		}
	}
	if len(out.pairs) == 0 {
		return nil
	}
	slices.Sort(out.pairs)
	return &out
}
