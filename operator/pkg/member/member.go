// Package member names the ranks of a world (docs/architecture.md, section 2). A member is a pod's device in one
// incarnation. Its id is never reused.
package member

import (
	"fmt"
	"strconv"
	"strings"
)

// ID of a member. On the wire and in records it is the text that String returns.
type ID struct {
	PodUID      string // not empty, without a slash
	Device      uint32 // of the pod, from 0
	Incarnation uint64 // changes whenever the rank could not keep its id; not 0
}

// Place is a device of a pod. It has one member at a time.
type Place struct {
	PodUID string
	Device uint32
}

// Place returns the member's place.
func (id ID) Place() Place { return Place{PodUID: id.PodUID, Device: id.Device} }

// String formats POD/DEVICE/INCARNATION, both numbers decimal.
func (id ID) String() string { return fmt.Sprintf("%s/%d/%d", id.PodUID, id.Device, id.Incarnation) }

// String formats POD/DEVICE.
func (p Place) String() string { return fmt.Sprintf("%s/%d", p.PodUID, p.Device) }

// Parse accepts exactly the format of String.
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

// PodOf returns the pod's UID in the text of a member's id; empty: the text is not a member's id.
func PodOf(text string) string {
	id, err := Parse(text)
	if err != nil {
		return ""
	}
	return id.PodUID
}
