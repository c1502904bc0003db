package agentclient

import (
	"fmt"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// known is the data that an agent has sent and omits from later statuses while unchanged. It is immutable: calls may
// overtake each other, and each reply is completed from the data that its own request named. nil: nothing.
type known struct {
	hash   string // of the layout
	layout *tangramv1.Layout
	held   map[string]inventory // by member id
}

type inventory struct {
	version uint64
	of      *tangramv1.Inventory
}

func (k *known) request(world string) *tangramv1.StatusRequest {
	q := &tangramv1.StatusRequest{World: world}
	if k == nil {
		return q
	}
	q.KnownLayout, q.KnownInventories = []byte(k.hash), make(map[string]uint64, len(k.held))
	for member, i := range k.held {
		q.KnownInventories[member] = i.version
	}
	return q
}

// complete fills in the omitted data of a status, and returns the data that is known then.
func (k *known) complete(s *tangramv1.StatusResponse) (*known, error) {
	if k == nil {
		k = &known{}
	}
	now := &known{hash: string(s.LayoutHash), held: make(map[string]inventory, len(s.Ranks))}
	if s.Layout == nil && now.hash != "" {
		if now.hash != k.hash {
			return nil, fmt.Errorf("the reply omits the layout of epoch %d, which is not known", s.Epoch)
		}
		s.Layout = k.layout
	} else if s.Layout != nil {
		s.Layout = layouts.one(now.hash, s.Layout)
	}
	now.layout = s.Layout
	for _, r := range s.Ranks {
		if r.InventoryVersion == 0 {
			continue // a rank without inventory
		}
		member := r.Member.GetId()
		if r.Inventory == nil {
			before := k.held[member]
			if before.version != r.InventoryVersion {
				return nil, fmt.Errorf("the reply omits the inventory of member %s, which is not known", member)
			}
			r.Inventory = before.of
		}
		now.held[member] = inventory{r.InventoryVersion, r.Inventory}
	}
	return now, nil
}
