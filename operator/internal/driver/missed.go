package driver

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Missed is why a member's engine abandoned its step: what it found wrong with another member. Cause and Doing have the
// lower-case names of the API's enumerations.
type Missed struct {
	By     string `json:"by"`
	Member string `json:"member"`
	Cause  string `json:"cause"`           // gone, silent, stuck, hostile, gave_up, told
	Doing  string `json:"doing"`           // words, dispatch, combine, exchange, flip
	Layer  uint32 `json:"layer,omitempty"` // of the model; in dispatch and combine
}

// mostMissed bounds Record.Missed: if many ranks wait for one, a few reports suffice.
const mostMissed = 16

// String omits the reporting member.
func (m Missed) String() string {
	text := m.Member + " " + strings.ReplaceAll(m.Cause, "_", " ") + " in " + m.Doing
	if m.InLayer() {
		text += fmt.Sprintf(" of layer %d", m.Layer)
	}
	return text
}

// InLayer says whether Layer has a meaning.
func (m Missed) InLayer() bool {
	return m.Doing == wordOf(tangramv1.Doing_DOING_DISPATCH) || m.Doing == wordOf(tangramv1.Doing_DOING_COMBINE)
}

// wordOf returns an enumeration value's name without the prefix, in lower case: CAUSE_GAVE_UP is gave_up.
func wordOf(value fmt.Stringer) string {
	_, word, _ := strings.Cut(value.String(), "_")
	return strings.ToLower(word)
}

// missedBy returns the reports of a stopped member's engine. Its ranks are those of the layout of this member.
func missedBy(by string, engine *tangramv1.EngineStatus, members []*tangramv1.Member) []Missed {
	var out []Missed
	for _, m := range engine.GetMissed() {
		cause, doing := tangramv1.Cause_name[int32(m.GetCause())], tangramv1.Doing_name[int32(m.GetDoing())]
		if int(m.GetRank()) >= len(members) || m.GetCause() == 0 || m.GetDoing() == 0 || cause == "" || doing == "" { // an engine may write anything
			continue
		}
		out = append(out, Missed{By: by, Member: members[m.GetRank()].Id, Cause: wordOf(m.GetCause()), Doing: wordOf(m.GetDoing()), Layer: m.GetLayer()})
	}
	return out
}

// missed returns all reports of the members of a scene, first those about lost members: the first rank to abandon a
// step is missed by the others, too.
func (s scene) missed(lost []Lost) []Missed {
	var out []Missed
	for _, id := range union(s.newest, s.older) {
		out = append(out, s.members[id].missed...)
	}
	late := func(m Missed) int {
		return bit(!slices.ContainsFunc(lost, func(l Lost) bool { return l.Member == m.Member }))
	}
	slices.SortStableFunc(out, func(a, b Missed) int { return cmp.Compare(late(a), late(b)) })
	return out[:min(len(out), mostMissed)]
}
