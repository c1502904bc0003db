package driver

import (
	"fmt"
	"slices"
	"strings"
	"time"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// doubts of a repair that is under way: all its members stand still and reached each other when the fence was made. One whose
// engine hangs now, or is cut off, answers nothing more, and the repair would wait for it: the others tell, since they hear
// nothing of it. since tells for how long a pair of members has been without a connection.
type doubts struct{ since map[[2]string]time.Time }

// look at what the members of a repair, who stand on the layout `before`, say of each other now. The error wraps
// ErrNeedsRepair: some are apart for longer than a line takes that broke and is made again.
func (d *doubts) look(before *tangramv1.Layout, members map[string]bool, latest map[int]*tangramv1.StatusResponse) error {
	standing := map[string]*tangramv1.EngineStatus{}
	for _, s := range latest {
		for _, r := range s.GetRanks() {
			id := r.GetMember().GetId()
			// Nobody knows where a fresh engine is until the repair tells.
			if _, counted := members[id]; counted && s.GetEpoch() == before.GetEpoch() && r.GetEngine().GetStopped() && !r.GetEngine().GetFresh() {
				standing[id] = r.Engine
			}
		}
	}
	was := d.since
	d.since = map[[2]string]time.Time{}
	var long []string
	for id, engine := range standing {
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
			if time.Since(since) >= hangSettle {
				long = append(long, id+" does not reach "+other+" any more")
			}
		}
	}
	if len(long) == 0 {
		return nil
	}
	slices.Sort(long)
	return fmt.Errorf("%w: while it is repaired %s", ErrNeedsRepair, strings.Join(long, ", "))
}
