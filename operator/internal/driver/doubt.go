package driver

import (
	"slices"
	"strings"
	"time"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// freshSettle is how long an engine that came back may be out of reach once a repair has told its peers where it is.
const freshSettle = 4 * time.Second

// doubts of a repair that is under way: all its members stand still and reached each other when the fence was made. One whose
// engine hangs now, or is cut off, answers nothing more, and the repair would wait for it: the others tell, since they hear
// nothing of it. since tells for how long a pair of members has been without a connection.
type doubts struct{ since map[[2]string]time.Time }

// apartError says that members of a repair do not reach each other any more.
type apartError struct {
	pairs []string
	fresh []string // of these, whose engines came back: where they are was told
}

func (e *apartError) Error() string { return "during the repair, " + strings.Join(e.pairs, ", ") }
func (e *apartError) Unwrap() error { return ErrNeedsRepair }

// look at what the members of a repair, who stand on the layout `before`, say of each other now: an apartError if some
// are apart for longer than a line takes that broke and is made again.
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
		if engine.GetAttachedAfterFlip() { // it tells only of what its engine of before reached
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
