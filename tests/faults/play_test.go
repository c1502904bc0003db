package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"tangram.dev/e2e/harness"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

const (
	together = 20 * time.Millisecond
	hang     = 20 * time.Second // until a hung engine is removed, or the work that it blocked is aborted
	cutOff   = 90 * time.Second // until a rank behind a cut link is removed: a joining rank tries for 30 s (limits.h)
	// Duration of an agent's hang, unless the rank is removed first: longer than the driver waits for its reply.
	hangOfAgent = 4 * time.Second
	// Duration of a KV source's stop: all others have abandoned the flip by then.
	hangOfSource = 12 * time.Second
	shortly      = 300 * time.Millisecond // shorter than any timeout
	heals        = 700 * time.Millisecond // long enough to be noticed, too short for a timeout
)

// cell is a running cell.
type cell struct {
	*stage
	fault
	living []int          // pods at the start
	ids    map[int]string // members by pod
	struck time.Time
	held   time.Duration // how long this test held the process at the point
	heal   []func() error
	known  int    // number of earlier actions of the keeper
	source string // the stopped member of source-stop: no other one may be removed
}

// play runs one cell. The places of requests and pieces decide whether a pod passes a point, and whether a flip has KV
// to migrate. Otherwise the cell is repeated.
func (s *stage) play(ctx context.Context, f fault) (t toll, notReached bool, err error) {
	for range s.tries {
		if t, notReached, err = s.playOnce(ctx, f); err != nil || !notReached {
			return t, notReached, err
		}
	}
	return t, true, nil
}

func (s *stage) playOnce(ctx context.Context, f fault) (t toll, notReached bool, err error) {
	if err := s.lead(ctx, f.transition.from); err != nil {
		return t, false, fmt.Errorf("before the case: %w", err)
	}
	c := &cell{stage: s, fault: f, living: s.Living()}
	if c.ids, err = s.members(ctx); err != nil { // now, because a process held at a point may not respond
		return t, false, err
	}
	s.did = nil
	c.known = len(s.keeper.Did())
	before, err := s.read(ctx)
	if err != nil {
		return t, false, err
	}
	end := s.load(ctx)
	defer end() // on every return
	if err := s.awaitBusy(ctx); err != nil {
		return t, false, err
	}
	if notReached, err = c.strikeUnderWay(ctx); err != nil {
		return t, false, err
	}
	if err := s.refill(ctx); err != nil {
		return t, false, err
	}
	if err := s.await(ctx, f.transition.to, before.epoch, false); err != nil {
		return t, false, err
	}
	whole := time.Since(c.struck).Seconds()
	results := end()
	if err := s.judge.check(ctx, results); err != nil {
		return t, false, err
	}
	if err := s.await(ctx, f.transition.to, before.epoch, true); err != nil {
		return t, false, err
	}
	did := slices.Concat(s.did, s.keeper.Did())[min(c.known, len(s.did)+len(s.keeper.Did())):]
	if t, err = s.count(ctx, before, did, results, c.struck); err != nil || notReached {
		return t, notReached, err
	}
	t.Whole, t.Held = whole, c.held.Seconds()
	return t, t.carriedNothing(f), errors.Join(t.excess(f, s.bounds), c.suspects(did))
}

// suspects reports healthy members that others took for lost while a source of KV was stopped; and whether no member
// missed the source.
func (c *cell) suspects(did []harness.Did) error {
	if c.source == "" {
		return nil
	}
	var errs []error
	missed := false
	for _, d := range did {
		if d.Record == nil {
			continue
		}
		for _, m := range d.Record.Missed {
			missed = missed || m.Member == c.source
			if m.Member != c.source && m.By != c.source && (m.Cause == "silent" || m.Cause == "stuck") {
				errs = append(errs, fmt.Errorf("%s missed %s (%s in %s), though only %s was stopped", m.By, m.Member, m.Cause, m.Doing, c.source))
			}
		}
		for _, lost := range d.Record.Lost {
			if lost.Member != c.source {
				errs = append(errs, fmt.Errorf("%s was left out (%s), though only %s was stopped", lost.Member, lost.Why, c.source))
			}
		}
	}
	if !missed {
		errs = append(errs, fmt.Errorf("nobody missed %s", c.source))
	}
	return errors.Join(errs...)
}

// strikeUnderWay starts the transition, and strikes while a process is held at the point.
func (c *cell) strikeUnderWay(ctx context.Context) (notReached bool, err error) {
	defer func() { err = errors.Join(err, c.release()) }()
	if notReached, err = c.begin(ctx, false, func() error { return c.arm(c.point) }); err != nil || notReached {
		return notReached, err
	}
	at, err := c.reached(c.point)
	if err != nil || at < 0 {
		return at < 0, err
	}
	c.struck = time.Now()
	return false, c.strike(ctx, c.kind, c.point, at, true)
}

// begin starts the transition, with the first fault (last: and no other). armed is called before it takes effect.
func (c *cell) begin(ctx context.Context, last bool, armed func() error) (notReached bool, err error) {
	for _, p := range c.living {
		if err := reset(c.FaultDir(p)); err != nil {
			return false, err
		}
	}
	c.struck = time.Now()
	tr := c.transition
	if tr.first.at == "" {
		if err := armed(); err != nil {
			return false, err
		}
		if tr.first.kind == "" {
			return false, c.keep(tr.to)
		}
		return false, c.strike(ctx, tr.first.kind, "", c.living[0], last)
	}
	dir := c.FaultDir(c.living[0])
	if err := touch(filepath.Join(dir, tr.first.at+".armed")); err != nil {
		return false, err
	}
	if err := c.keep(tr.to); err != nil {
		return false, err
	}
	if !eventually(ctx, c.reach, func() bool { return exists(filepath.Join(dir, tr.first.at+".hit")) }) {
		return true, nil
	}
	for _, p := range c.living { // points passed from now on are consequences of the fault
		if err := remove(c.FaultDir(p), ".seen"); err != nil {
			return false, err
		}
	}
	if err := armed(); err != nil {
		return false, err
	}
	return false, c.strike(ctx, tr.first.kind, tr.first.at, c.living[0], last)
}

// places are the pods that may be held at the point: all except one that is dead by then.
func (c *cell) places() []int {
	if c.transition.first.kind == "pod" {
		return c.living[1:]
	}
	return c.living
}

func (c *cell) arm(point string) error {
	for _, p := range c.places() {
		if c.transition.first.at == point && p == c.living[0] {
			continue // it is held there
		}
		if err := touch(filepath.Join(c.FaultDir(p), point+".armed")); err != nil {
			return err
		}
	}
	return nil
}

// reached waits until a pod is held at the point, and releases all except one; -1: none arrived.
func (c *cell) reached(point string) (int, error) {
	at := func() (out []int) {
		for _, p := range c.places() {
			if exists(filepath.Join(c.FaultDir(p), point+".hit")) && exists(filepath.Join(c.FaultDir(p), point+".armed")) {
				out = append(out, p)
			}
		}
		return out
	}
	come := func() bool {
		if c.transition.first.kind == "cut" && c.leftOut(c.known) { // a removed rank may return
			for _, heal := range c.heal {
				_ = heal() // repeated by release, which reports errors
			}
		}
		return len(at()) > 0
	}
	if !eventually(context.Background(), c.reach, come) {
		return -1, nil
	}
	time.Sleep(together) // most points are passed by all at about the same time: any of them may be chosen
	all := at()
	one := all[c.draw(len(all))]
	for _, p := range c.places() {
		if p != one {
			if err := os.Remove(filepath.Join(c.FaultDir(p), point+".armed")); err != nil && !os.IsNotExist(err) {
				return -1, err
			}
		}
	}
	return one, nil
}

// release releases all held processes, and heals cut links.
func (c *cell) release() error {
	var errs []error
	if c.transition.first.kind == "cut" && len(c.heal) > 0 {
		for end := time.Now().Add(cutOff); !c.everLeftOut(); time.Sleep(shortly) { // a check starts a process
			if time.Now().After(end) {
				errs = append(errs, fmt.Errorf("nobody was left out within %v of a cut link", cutOff))
				break
			}
		}
	}
	for _, heal := range c.heal {
		errs = append(errs, heal())
	}
	c.heal = nil
	for _, p := range c.living {
		errs = append(errs, remove(c.FaultDir(p), ".armed"))
	}
	return errors.Join(errs...)
}

// other returns another pod of the world that did not die first.
func (c *cell) other(pod int) int {
	others := slices.DeleteFunc(slices.Clone(c.places()), func(p int) bool { return p == pod })
	return others[c.draw(len(others))]
}

// strike strikes while a pod is held at the point, then releases it; "": no pod is held. last: no other fault follows,
// so lasting effects may be awaited.
func (c *cell) strike(ctx context.Context, kind, point string, at int, last bool) error {
	armed := filepath.Join(c.FaultDir(at), point+".armed")
	letGo := func() error {
		if point == "" {
			return nil
		}
		hit, err := os.Stat(filepath.Join(c.FaultDir(at), point+".hit"))
		if err != nil {
			return err
		}
		c.held = time.Since(hit.ModTime())
		return os.Remove(armed)
	}
	act := func(action string) error { // the held process removes the file and does it
		if err := os.WriteFile(armed, []byte(action), 0o600); err != nil {
			return err
		}
		if !eventually(ctx, c.reach, func() bool { return !exists(armed) }) {
			return fmt.Errorf("%s does not take %s", point, action)
		}
		return nil
	}
	known := len(c.keeper.Did())
	leftOut := func() bool { return c.leftOut(known) }
	switch kind {
	case "engine":
		c.KillEngine(at, 0)
	case "agent":
		c.KillAgent(at)
	case "pod":
		c.KillPod(at)
	case "other-engine":
		c.KillEngine(c.other(at), 0)
	case "other-agent":
		c.KillAgent(c.other(at))
	case "other-pod":
		c.KillPod(c.other(at))
	case "operator":
		c.endKeeper()
		if err := letGo(); err != nil {
			return err
		}
		time.Sleep(shortly) // time without an operator
		return c.keep(c.transition.to)
	case "link", "cut":
		if err := c.cut(at, c.other(at)); err != nil {
			return err
		}
		if err := letGo(); err != nil {
			return err
		}
		if !last {
			return nil
		}
		if kind == "link" {
			time.Sleep(heals)
		} else if !eventually(ctx, cutOff, leftOut) {
			return fmt.Errorf("nobody was left out within %v of a cut link", cutOff)
		}
		return nil // release heals it
	case "engine-pause", "engine-stop":
		c.HangEngine(at, 0, true)
		defer c.HangEngine(at, 0, false)
		if err := letGo(); err != nil {
			return err
		}
		if kind == "engine-pause" {
			time.Sleep(shortly)
		} else if !eventually(ctx, hang, leftOut) {
			if joins, err := c.joins(ctx, at); err != nil || !joins { // a joining rank delays only its attempt
				return errors.Join(fmt.Errorf("nobody noticed within %v that an engine hangs", hang), err)
			}
		}
		return nil
	case "source-stop":
		source := c.other(at)
		c.source = c.ids[source]
		for _, stop := range []func(bool){func(is bool) { c.HangEngine(source, 0, is) }, func(is bool) { c.HangAgent(source, is) }} {
			stop(true)
			defer stop(false)
		}
		if err := letGo(); err != nil {
			return err
		}
		eventually(ctx, hangOfSource, leftOut) // otherwise none is removed: it may have flipped
		return nil
	case "agent-pause", "agent-stop":
		c.HangAgent(at, true)
		defer c.HangAgent(at, false)
		if err := letGo(); err != nil {
			return err
		}
		if kind == "agent-pause" {
			time.Sleep(shortly)
		} else {
			eventually(ctx, hangOfAgent, leftOut) // otherwise no removal is needed: engines keep serving
		}
		return nil
	case "slow":
		return act(fmt.Sprintf("delay:%d", shortly.Milliseconds()))
	case "error", "corrupt":
		return act(kind)
	default:
		return fmt.Errorf("no kind of fault %q", kind)
	}
	return letGo()
}

// joins reports whether the pod's rank is in no layout yet.
func (c *cell) joins(ctx context.Context, pod int) (bool, error) {
	all, err := c.Status(ctx)
	if err != nil {
		return false, err
	}
	for _, a := range all {
		for _, r := range a.Ranks {
			if strings.HasPrefix(r.Member.Id, fmt.Sprintf("uid-p%d/", pod)) {
				return !r.InWorld, nil
			}
		}
	}
	return false, fmt.Errorf("no agent has a rank of pod %d", pod)
}

// leftOut reports whether a rank was removed, or the transition aborted, after the first `known` actions of the keeper.
func (c *cell) leftOut(known int) bool {
	return slices.ContainsFunc(c.keeper.Did()[known:], leavesOut)
}

// everLeftOut reports whether a rank was removed since the cell began, by this keeper or by a killed one, which may not
// have reported it: then a pod has another member.
func (c *cell) everLeftOut() bool {
	all := slices.Concat(c.did, c.keeper.Did())
	if slices.ContainsFunc(all[min(c.known, len(all)):], leavesOut) {
		return true
	}
	now, err := c.members(context.Background())
	if err != nil {
		return false // a rank that does not respond is restarting
	}
	return slices.ContainsFunc(c.living, func(p int) bool { return now[p] != c.ids[p] })
}

func leavesOut(d harness.Did) bool {
	return d.Error != "" || d.Record != nil && len(d.Record.Lost) > 0
}

// cut cuts the link between the ranks of two pods.
func (c *cell) cut(a, b int) error {
	for _, pair := range [][2]int{{a, b}, {b, a}} {
		path := filepath.Join(c.FaultDir(pair[0]), "cut")
		if err := os.WriteFile(path, []byte(c.ids[pair[1]]+"\n"), 0o600); err != nil {
			return err
		}
		c.heal = append(c.heal, func() error {
			if err := os.Remove(path); err != nil && !os.IsNotExist(err) { // two faults may cut the same link
				return err
			}
			return nil
		})
	}
	return nil
}

// members returns the members by pod.
func (s *stage) members(ctx context.Context) (map[int]string, error) {
	all, err := s.Status(ctx)
	if err != nil {
		return nil, err
	}
	out := map[int]string{}
	for _, a := range all {
		for _, r := range a.Ranks {
			var pod int
			if _, err := fmt.Sscanf(r.Member.Id, "uid-p%d/", &pod); err != nil {
				return nil, fmt.Errorf("member %q: %w", r.Member.Id, err)
			}
			out[pod] = r.Member.Id
		}
	}
	return out, nil
}

// eventually polls until the condition holds, or the time ends.
func eventually(ctx context.Context, within time.Duration, is func() bool) bool {
	for end := time.Now().Add(within); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) || ctx.Err() != nil {
			return false
		}
	}
	return true
}

// survey returns the points that a transition passes with only its first fault. It repeats the transition a few times
// until all expected points are passed: some are passed only if requests happen to be where they must move.
func (s *stage) survey(ctx context.Context, tr transition, expected []string) ([]string, error) {
	var all []string
	for range s.tries {
		seen, err := s.surveyOnce(ctx, tr)
		if err != nil {
			return nil, err
		}
		all = append(all, seen...)
		if !slices.ContainsFunc(expected, func(point string) bool { return !slices.Contains(all, point) }) {
			break
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

func (s *stage) surveyOnce(ctx context.Context, tr transition) ([]string, error) {
	if err := s.lead(ctx, tr.from); err != nil {
		return nil, err
	}
	c := &cell{stage: s, fault: fault{transition: tr}, living: s.Living()}
	ids, err := s.members(ctx)
	if err != nil {
		return nil, err
	}
	c.ids = ids
	before, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	end := s.load(ctx)
	defer end()
	if err := s.awaitBusy(ctx); err != nil {
		return nil, err
	}
	_, err = c.begin(ctx, true, func() error { return nil })
	if err = errors.Join(err, c.release()); err != nil {
		return nil, err
	}
	if len(s.Living()) < s.pods { // only the repair: a new pod passes the points of a join
		err = s.awaitRepaired(ctx, before.epoch)
	} else {
		err = s.await(ctx, tr.to, before.epoch, false)
	}
	if err != nil {
		return nil, err
	}
	var out []string
	for _, p := range c.places() {
		out = append(out, points(s.FaultDir(p), ".seen")...)
	}
	if err := s.refill(ctx); err != nil {
		return nil, err
	}
	if err := s.await(ctx, tr.to, before.epoch, false); err != nil {
		return nil, err
	}
	return out, s.judge.check(ctx, end())
}

// awaitRepaired waits until all members of a layout of a later epoch compute steps.
func (s *stage) awaitRepaired(ctx context.Context, above uint64) error {
	ctx, cancel := context.WithTimeout(ctx, s.settle)
	defer cancel()
	for {
		all, err := s.Status(ctx)
		stepping, members := 0, 0
		for _, a := range all {
			for _, r := range a.Ranks {
				if r.InWorld && a.Epoch > above && !r.Engine.Stopped && r.Transition.GetPhase() <= tangramv1.Phase_PHASE_IDLE {
					stepping, members = stepping+1, len(a.Layout.GetMembers())
				}
			}
		}
		if err == nil && stepping > 0 && stepping == members {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d survivors step again: %w", stepping, members, errors.Join(err, ctx.Err()))
		case <-time.After(look):
		}
	}
}
