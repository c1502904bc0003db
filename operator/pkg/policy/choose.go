package policy

import (
	"fmt"
	"math"
	"slices"

	"tangram.dev/operator/pkg/kernels"
)

// choice of width and mode.
type choice struct {
	all []verdict // on each width in each mode, for when pods would have come; the narrowest first
	now []verdict // on the modes of the width that serves, for what comes now
}

// against modes of the width that serves.
type against struct {
	ranks   int
	reasons map[kernels.Shape]Reason
	unseen  []kernels.Shape // that planner or memory refused when it was looked: whether they would hold the SLO is not known
}

// modeCooldown: seconds after any change in which the mode does not change.
const modeCooldown = 5

// modesNow of the width that serves, by what comes now: a mode can be changed at once, so that no headroom is needed. Policies of the mode are told which of them
// do not keep up where another one does.
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

// Limit what a policy of the mode sees of the state to the width that serves, and to modes in which that holds the SLO if it does so in any.
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

// byWidth is of each width the mode that the world would have there: the wanted one while it keeps up with what comes, else the one that does so with most to spare, or
// that comes nearest to it.
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
	wanted := s.Shape // what is there, or is on its way
	if s.Pods.Wanted.Ranks > 0 {
		wanted = s.Pods.Wanted
	}
	all := byWidth(c.all, wanted.Kind())
	best, none := first(all, func(v verdict) bool { return v.holds })
	if none {
		best = nearestOf(all, wanted, p.o.Margin)
	}
	calm := best // the narrowest that may be gone down to
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
	last := t.At - max(p.changed, p.width) // decided on, or there
	if v, is := p.modeFirst(t, s, c.now, best); is {
		reject(v.option.Shape)
		return Decision{Switch: true, To: v.option.Shape, Why: Reason{modeFirst + v.why.Text, v.why.Figures}, Rejected: rejected}
	}
	switch {
	case to > wanted.Ranks:
		if p.narrowed > 0 && t.At-p.narrowed < p.o.Window { // it was wrong to go down
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

// modeFirst: another mode keeps up at the width that serves where this one does not, or the world is to have it with more ranks and comes no less near in it now. Ranks that
// are ready are not waited for: then both change at once.
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

// tooWide: what was decided on cannot be had.
func (p *Width) tooWide(s State, all []verdict) bool {
	return p.short > 0 && s.Pods.Wanted.Ranks > p.allowed && all[len(all)-1].option.Shape.Ranks < s.Pods.Wanted.Ranks
}
