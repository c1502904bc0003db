package policy

import (
	"fmt"
	"math"
	"slices"

	"tangram.dev/operator/pkg/kernels"
)

// choice of width and mode.
type choice struct {
	all []verdict // on each width in each mode, for the time when pods would have started; the narrowest first
	now []verdict // on the modes of the active width, for the current rate
}

// against lists the modes of the active width that a policy of the mode should avoid.
type against struct {
	ranks   int
	reasons map[kernels.Shape]Reason
	unseen  []kernels.Shape // rejected by planner or memory; unknown whether they would meet the SLO
}

// modeCooldown: seconds after any change during which the mode does not change.
const modeCooldown = 5

// modesNow judges the modes of the active width at the current rate, without headroom, because a mode change is
// immediate. It records modes that do not keep up, if another one does, for policies of the mode.
func (p *Width) modesNow(trials []trial, s State, l lengths, soon figuresNow) []verdict {
	var out []verdict
	soon.headroom = 1
	keeps := false
	for _, one := range trials {
		if one.option.Shape.Ranks != s.Shape.Ranks {
			continue
		}
		v, err := p.judge(one, l, soon)
		if err != nil {
			continue
		}
		out = append(out, v)
		keeps = keeps || v.keeps
	}
	if len(out) < 2 || !keeps {
		return out
	}
	p.against.ranks, p.against.reasons = s.Shape.Ranks, map[kernels.Shape]Reason{}
	for _, v := range out {
		if v.option.Shape != s.Shape && !v.easily || !v.keeps {
			p.against.reasons[v.option.Shape] = Reason{"This shape would not meet the SLO. " + v.why.Text, v.why.Figures}
		}
	}
	return out
}

// Limit restricts the state for a policy of the mode to the active width. If some mode there keeps up, it marks those
// that do not.
func (p *Width) Limit(s State) State {
	var out []Option
	for _, o := range s.Options {
		if o.Shape.Ranks != s.Shape.Ranks {
			continue
		}
		if why, is := p.against.reasons[o.Shape]; is && p.against.ranks == s.Shape.Ranks && o.Shape != s.Shape {
			o.Against = &why
		} else if slices.Contains(p.against.unseen, o.Shape) {
			o.Against = &Reason{Text: "This shape was not available at the last decision on the number of ranks."}
		}
		out = append(out, o)
	}
	s.Options = out
	return s
}

// byWidth selects, for each width, the mode that the world would have there: the wanted one if it keeps up with the
// rate, otherwise the mode that keeps up with the most spare capacity, or that comes nearest.
func byWidth(all []verdict, wanted kernels.Kind) []verdict {
	var out []verdict
	for len(all) > 0 {
		n := slices.IndexFunc(all, func(v verdict) bool { return v.option.Shape.Ranks != all[0].option.Shape.Ranks })
		if n < 0 {
			n = len(all)
		}
		out = append(out, bestMode(all[:n], wanted))
		all = all[n:]
	}
	return out
}

func bestMode(of []verdict, wanted kernels.Kind) verdict {
	is := func(v verdict) bool { return v.option.Shape.Kind() == wanted }
	if i := slices.IndexFunc(of, is); i >= 0 && of[i].keeps {
		return of[i]
	}
	best, least := -1, math.Inf(1)
	for i, v := range of {
		if use := v.why.Figures["use"]; v.keeps && use < least {
			best, least = i, use
		}
	}
	if best >= 0 {
		return of[best]
	}
	left := asNear(of, sameRatio)
	if i := slices.IndexFunc(left, is); i >= 0 {
		return left[i]
	}
	return left[0]
}

func (p *Width) choose(t Telemetry, s State, c choice, rejected []Rejected) Decision {
	wanted := s.Shape // active, or decided on
	if s.Pods.Wanted.Ranks > 0 {
		wanted = s.Pods.Wanted
	}
	all := byWidth(c.all, wanted.Kind())
	best, none := first(all, func(v verdict) bool { return v.holds })
	if none {
		best = nearestOf(all, wanted, p.o.Margin)
	}
	calm := best // the narrowest that may be chosen
	for _, v := range all {
		if v.spare {
			calm = v
			break
		}
	}
	reject := func(but kernels.Shape) {
		for _, v := range c.all {
			if v.option.Shape != but {
				rejected = append(rejected, Rejected{v.option.Shape, v.why})
			}
		}
	}
	decide := func(v verdict, text string) Decision {
		reject(v.option.Shape)
		f := v.why.Figures
		if !s.DryRun {
			p.changed, p.ever = t.At, true
		}
		return Decision{Switch: true, To: v.option.Shape, Why: Reason{text + v.why.Text, f}, Rejected: rejected}
	}
	to := best.option.Shape.Ranks
	last := t.At - max(p.changed, p.width) // since the last decision or change
	if v, is := p.modeFirst(t, s, c.now, best); is {
		reject(v.option.Shape)
		return Decision{Switch: true, To: v.option.Shape, Why: Reason{modeFirst + v.why.Text, v.why.Figures}, Rejected: rejected}
	}
	switch {
	case to > wanted.Ranks:
		if p.narrowed > 0 && t.At-p.narrowed < p.o.Window { // the earlier decrease was wrong
			p.cooldown = min(2*p.cooldown, 16*p.o.Cooldown)
		} else {
			p.cooldown = p.o.Cooldown
		}
		p.narrowed = 0
		text := "More ranks are needed. "
		if none {
			text = nearest
		}
		return decide(best, text)
	case p.tooWide(s, all) && none && best.option != all[len(all)-1].option:
		return decide(best, nearest)
	case p.tooWide(s, all):
		return decide(all[len(all)-1], "The cluster has no room for more pods. ")
	case calm.option.Shape.Ranks < wanted.Ranks && to < wanted.Ranks:
		seen := t.At - p.past.all[0].at
		f := calm.why.Figures
		f["seen"], f["since"], f["cooldown"] = seen, last, p.cooldown
		if p.ever && last < p.cooldown || seen < p.o.Window/4 {
			reject(kernels.Shape{})
			return Decision{To: s.Shape, Rejected: rejected, Why: Reason{fmt.Sprintf("Fewer ranks would suffice. The last change was %.0f s ago (cooldown %.0f s), and %.0f s of load are known.",
				last, p.cooldown, seen), f}}
		}
		if !s.DryRun {
			p.narrowed = t.At
		}
		text := "Fewer ranks suffice. "
		if none {
			text = nearest
		}
		return decide(calm, text)
	}
	reject(wanted)
	for _, v := range c.all {
		if v.option.Shape == wanted {
			return Decision{To: s.Shape, Why: Reason{"The number of ranks is right. " + v.why.Text, v.why.Figures}, Rejected: rejected}
		}
	}
	return Decision{To: s.Shape, Why: Reason{"The number of ranks is right.", nil}, Rejected: rejected}
}

const modeFirst = "The mode changes first, because this requires no new pod. "

// modeFirst changes the mode first if another one keeps up at the active width and the current one does not, or if the
// world should get that mode with more ranks and is no worse in it now. If the ranks are ready, both change together.
func (p *Width) modeFirst(t Telemetry, s State, now []verdict, best verdict) (verdict, bool) {
	own := slices.IndexFunc(now, func(v verdict) bool { return v.option.Shape == s.Shape })
	to := best.option.Shape
	if s.Pods.Wanted.Ranks > 0 || own < 0 || now[own].keeps || to.Ranks < s.Shape.Ranks || to.Ranks > s.Shape.Ranks && s.Pods.Ready >= to.Ranks ||
		p.ever && t.At-p.changed < modeCooldown || t.At-p.since < modeCooldown {
		return verdict{}, false
	}
	v := bestMode(now, s.Shape.Kind())
	if v.option.Shape == s.Shape || !v.keeps && (to.Ranks <= s.Shape.Ranks || to.Kind() != v.option.Shape.Kind()) {
		return verdict{}, false
	}
	if !s.DryRun {
		p.changed, p.ever = t.At, true
	}
	return v, true
}

// tooWide: the cluster has no room for the width that was decided on.
func (p *Width) tooWide(s State, all []verdict) bool {
	return p.short > 0 && s.Pods.Wanted.Ranks > p.allowed && all[len(all)-1].option.Shape.Ranks < s.Pods.Wanted.Ranks
}
