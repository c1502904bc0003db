package driver

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Missed is what a member's engine found of another one for which it gave its step up, in the words that agents and
// engines have for it.
type Missed struct {
	By     string `json:"by"`
	Member string `json:"member"`
	Cause  string `json:"cause"`           // gone, silent, stuck, hostile, gave_up, told
	Doing  string `json:"doing"`           // words, dispatch, combine, exchange, flip
	Layer  uint32 `json:"layer,omitempty"` // of the model; in dispatch and combine
}

// mostMissed bounds Record.Missed: of many ranks that wait for one, a few words are as good as all.
const mostMissed = 16

// String leaves out who says so.
func (m Missed) String() string {
	text := m.Member + " " + strings.ReplaceAll(m.Cause, "_", " ") + " in " + m.Doing
	if m.InLayer() {
		text += fmt.Sprintf(" of layer %d", m.Layer)
	}
	return text
}

// InLayer says whether Layer means something.
func (m Missed) InLayer() bool {
	return m.Doing == wordOf(tangramv1.Doing_DOING_DISPATCH) || m.Doing == wordOf(tangramv1.Doing_DOING_COMBINE)
}

// wordOf a value of an enumeration of the contract, whose names begin with its own: CAUSE_GAVE_UP is gave_up.
func wordOf(value fmt.Stringer) string {
	_, word, _ := strings.Cut(value.String(), "_")
	return strings.ToLower(word)
}

// missedBy a member whose engine stands still, as it tells; ranks are those of the layout that it stands on.
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

// missed is all that the members of a scene found of each other, first what they found of those that are lost: who was the first
// to give a step up is missed by the others, too.
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
