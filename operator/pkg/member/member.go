// Package member names the ranks of a world (docs/architecture.md, section 2): a member is a pod's device under one
// incarnation, and never comes back under that name.
package member

import (
	"fmt"
	"strconv"
	"strings"
)

// ID of a member. On the wire and in records it is the text that String gives.
type ID struct {
	PodUID      string // not empty, without a slash
	Device      uint32 // of the pod, from 0
	Incarnation uint64 // another one whenever the rank could not keep its name; not 0
}

// Place is where a member is: it has one member at a time.
type Place struct {
	PodUID string
	Device uint32
}

// Place of the member.
func (id ID) Place() Place { return Place{PodUID: id.PodUID, Device: id.Device} }

// String is POD/DEVICE/INCARNATION, both numbers decimal.
func (id ID) String() string { return fmt.Sprintf("%s/%d/%d", id.PodUID, id.Device, id.Incarnation) }

// String is POD/DEVICE.
func (p Place) String() string { return fmt.Sprintf("%s/%d", p.PodUID, p.Device) }

// Parse what String gives; nothing else.
func Parse(text string) (ID, error) {
	parts := strings.Split(text, "/")
	if len(parts) != 3 || parts[0] == "" {
		return ID{}, fmt.Errorf("member %q: want POD/DEVICE/INCARNATION", text)
	}
	device, err := strconv.ParseUint(parts[1], 10, 32)
	if err != nil {
		return ID{}, fmt.Errorf("member %q: the device %q is not a number of 32 bits", text, parts[1])
	}
	incarnation, err := strconv.ParseUint(parts[2], 10, 64)
	if err != nil || incarnation == 0 {
		return ID{}, fmt.Errorf("member %q: the incarnation %q is not a number of 64 bits above 0", text, parts[2])
	}
	id := ID{PodUID: parts[0], Device: uint32(device), Incarnation: incarnation}
	if id.String() != text {
		return ID{}, fmt.Errorf("member %q: its numbers are not as %s has them", text, id)
	}
	return id, nil
}

// PodOf a member, by the text of its id: the pod's UID. Empty: it is no member's id, and so of no pod.
func PodOf(text string) string {
	id, err := Parse(text)
	if err != nil {
		return ""
	}
	return id.PodUID
}
