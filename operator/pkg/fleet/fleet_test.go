package fleet

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// cluster simulates the world around Decide: pods start and end, transitions take time.
type cluster struct {
	World
	ranks    int
	uids     int
	goal     []string       // of the running transition: pods
	lives    map[string]int // by place (pod and device): how often its rank was removed
	out      []string       // pods with a dead rank that is not removed yet
	restarts int
}

func (c *cluster) members(uid string) []string {
	var out []string
	for d := range c.ranks {
		place := fmt.Sprintf("%s/%d", uid, d)
		out = append(out, fmt.Sprintf("%s/%d", place, 1+c.lives[place]))
	}
	return out
}

// enter a layout of these members.
func (c *cluster) enter(ids []string) {
	c.Layout, c.InForce = nil, ids
	for _, id := range ids {
		uid, _, _ := strings.Cut(id, "/")
		c.Layout = append(c.Layout, uid)
	}
}

func (c *cluster) create(t *testing.T, ordinal int) {
	for _, p := range c.Pods {
		require.NotEqual(t, ordinal, p.Ordinal, "an ordinal is taken once")
	}
	c.uids++
	c.Pods = append(c.Pods, Pod{Name: fmt.Sprintf("w-%d", ordinal), UID: fmt.Sprintf("u%d", c.uids), Ordinal: ordinal})
}

func (c *cluster) pod(uid string) *Pod {
	for i := range c.Pods {
		if c.Pods[i].UID == uid {
			return &c.Pods[i]
		}
	}
	return nil
}

func (c *cluster) remove(uid string) {
	c.Pods = slices.DeleteFunc(c.Pods, func(p Pod) bool { return p.UID == uid })
}

// do carries out a decision, and checks that it is allowed.
func (c *cluster) do(t *testing.T, d Decision) {
	if d.Repair {
		require.Empty(t, d.Create)
		require.Empty(t, d.Delete)
		require.Empty(t, d.Target)
		if !c.Busy {
			c.repair()
		}
		return
	}
	for _, x := range d.Delete {
		require.NotNil(t, c.pod(x.UID), "only pods that are there are deleted")
		require.NotContains(t, c.Layout, x.UID, "a pod of the layout is never deleted")
		if !c.pod(x.UID).Ended {
			require.NotContains(t, c.goal, x.UID, "nor one that is about to join")
		}
		c.remove(x.UID)
	}
	for _, o := range slices.Concat(d.Create, d.StandBy) {
		c.create(t, o)
	}
	if d.Target != nil {
		require.False(t, c.Busy)
		c.Busy, c.goal = true, nil
		for _, id := range d.Target {
			uid, _, _ := strings.Cut(id, "/")
			if p := c.pod(uid); p == nil || p.Members == nil || p.Ended {
				t.Fatalf("%s cannot be led to", id)
			}
			if !slices.Contains(c.goal, uid) {
				c.goal = append(c.goal, uid)
			}
		}
		require.Len(t, d.Target, len(c.goal)*c.ranks, "whole pods")
		for _, id := range d.Target {
			uid, _, _ := strings.Cut(id, "/")
			require.Contains(t, c.members(uid), id, "a rank that was left out never comes back under its name")
		}
		require.LessOrEqual(t, len(c.goal), c.Wanted)
	}
}

// repair removes dead members; without a survivor the world restarts.
func (c *cluster) repair() {
	var survivors []string
	for _, id := range c.InForce {
		place := id[:strings.LastIndexByte(id, '/')]
		uid, device, _ := strings.Cut(place, "/")
		switch p := c.pod(uid); {
		case p == nil || p.Ended:
		case slices.Contains(c.out, uid) && device == "0": // one of its engines died
			c.lives[place]++
		default:
			survivors = append(survivors, id)
		}
	}
	if len(survivors) == 0 && len(c.InForce) > 0 {
		c.restarts++
		for _, id := range c.InForce {
			c.lives[id[:strings.LastIndexByte(id, '/')]]++
		}
	}
	for i := range c.Pods { // until they report their new names
		c.Pods[i].Members = nil
	}
	c.enter(survivors)
	c.Broken, c.out = false, nil
}

// die: the pod ends or disappears, or one of its engines dies. A transition in progress with it fails.
func (c *cluster) die(p *Pod, how int) {
	in := slices.Contains(c.Layout, p.UID)
	if in || slices.Contains(c.goal, p.UID) {
		c.Busy, c.goal = false, nil
	}
	c.Broken = c.Broken || in
	p.Members = nil
	switch how {
	case 0:
		p.Ended = true
	case 1:
		c.remove(p.UID)
	case 2:
		if in {
			c.out = append(c.out, p.UID)
		}
	}
}

func (c *cluster) finish() {
	if !c.Busy {
		return
	}
	var ids []string
	for _, uid := range c.goal {
		ids = append(ids, c.members(uid)...)
	}
	c.enter(ids)
	c.Busy, c.ShapeReached, c.goal = false, true, nil
	c.end()
}

// end deletes terminating pods that have left, as their preStop hooks do.
func (c *cluster) end() {
	for _, p := range slices.Clone(c.Pods) {
		if p.Deleting && !slices.Contains(c.Layout, p.UID) {
			c.remove(p.UID)
		}
	}
}

func (c *cluster) start(i int) {
	if p := &c.Pods[i]; !p.Ended && !slices.Contains(c.out, p.UID) {
		p.Members = c.members(p.UID)
	}
}

// settle carries out all decisions; all pods start and every transition succeeds.
func (c *cluster) settle(t *testing.T) {
	for range 50 {
		for i := range c.Pods {
			c.start(i)
			c.Pods[i].Replaceable = true
		}
		c.finish()
		c.end()
		d := Decide(c.World)
		if d.Settled() && !c.Busy {
			return
		}
		c.do(t, d)
	}
	t.Fatalf("not settled: %+v: %+v", c.World, Decide(c.World))
}

func settled(t *testing.T, pods, ranks int) *cluster {
	c := &cluster{World: World{Wanted: pods}, ranks: ranks, lives: map[string]int{}}
	c.settle(t)
	require.Len(t, c.Layout, pods*ranks)
	return c
}

func names(c *cluster) []string {
	var out []string
	for _, p := range c.Pods {
		out = append(out, p.Name)
	}
	slices.Sort(out)
	return out
}

func TestStartWaitsForAllPods(t *testing.T) {
	c := &cluster{World: World{Wanted: 3}, ranks: 2, lives: map[string]int{}}
	d := Decide(c.World)
	require.Equal(t, []int{0, 1, 2}, d.Create)
	c.do(t, d)
	c.start(0)
	c.start(2)
	d = Decide(c.World)
	require.Nil(t, d.Target)
	require.Equal(t, []string{"w-1"}, d.Waiting)
	c.start(1)
	require.Len(t, Decide(c.World).Target, 6)
}

func TestScaleDownVictims(t *testing.T) {
	c := settled(t, 5, 1)
	c.Pods[0].NodeGoing = true
	c.Pods[2].DeletionCost = -5
	c.Pods[4].DeletionCost = 7
	c.Wanted = 2
	c.settle(t)
	require.Equal(t, []string{"w-1", "w-4"}, names(c), "the node that goes, the low cost, the high ordinal leave")
	c.Wanted = 3
	c.settle(t)
	require.Equal(t, []string{"w-0", "w-1", "w-4"}, names(c), "the lowest free ordinal is taken")
}

func TestScaleUpKeepsLayout_WhenPodsNeverStart(t *testing.T) {
	c := settled(t, 2, 1)
	c.Wanted = 4
	c.do(t, Decide(c.World))
	d := Decide(c.World)
	require.Nil(t, d.Target)
	require.Equal(t, []string{"w-2", "w-3"}, d.Waiting)
	c.Pods[2].Ended = true
	require.Empty(t, Decide(c.World).Delete, "what ended stays to be looked at for a while")
	c.Wanted = 2
	d = Decide(c.World)
	require.Len(t, d.Delete, 2)
	require.Nil(t, d.Target)
}

func TestManuallyDeletedPodLeavesAndIsReplaced(t *testing.T) {
	c := settled(t, 3, 2)
	c.Pods[1].Deleting = true
	gone := c.Pods[1].UID
	d := Decide(c.World)
	require.Equal(t, []int{3}, d.Create)
	require.Len(t, d.Target, 4, "narrower for a while")
	c.settle(t)
	require.NotContains(t, c.Layout, gone)
	require.Len(t, c.Layout, 6)
}

func TestLastPodLeavesAfterReplacementIsReady(t *testing.T) {
	c := settled(t, 1, 1)
	c.Pods[0].Deleting = true
	d := Decide(c.World)
	require.Nil(t, d.Target)
	require.Equal(t, []int{1}, d.Create)
	c.do(t, d)
	c.start(1)
	require.Equal(t, c.members(c.Pods[1].UID), Decide(c.World).Target)
}

func TestModeSwitchKeepsMembers(t *testing.T) {
	c := settled(t, 2, 2)
	c.ShapeReached = false
	require.Len(t, Decide(c.World).Target, 4)
	c.Pods[0].Members = nil // its engine is briefly detached
	d := Decide(c.World)
	require.Nil(t, d.Target)
	require.Equal(t, []string{"w-0"}, d.Waiting)
}

// An unfinished attempt ends by a transition to the current members.
func TestUnfinishedAttemptEndsWithCurrentMembers(t *testing.T) {
	c := settled(t, 2, 1)
	require.Empty(t, Decide(c.World).Target)
	c.Unfinished = true
	require.Equal(t, c.InForce, Decide(c.World).Target)
	c.Busy = true
	require.Empty(t, Decide(c.World).Target, "it is being ended, or goes on")
}

func TestLostMemberIsRepairedThenReplaced(t *testing.T) {
	for how, what := range []string{"ended", "gone", "an engine"} {
		t.Run(what, func(t *testing.T) {
			c := settled(t, 3, 2)
			before, lost := slices.Clone(c.InForce), c.Pods[0].UID
			c.die(&c.Pods[0], how)
			d := Decide(c.World)
			require.True(t, d.Repair)
			require.False(t, d.Settled())
			if how < 2 {
				require.Equal(t, []string{lost}, d.Lost)
			}
			c.do(t, d)
			require.Subset(t, before, c.InForce)
			require.Less(t, len(c.InForce), 6)
			c.settle(t)
			require.Len(t, c.InForce, 6)
			require.Zero(t, c.restarts)
			require.NotContains(t, c.InForce, lost+"/0/1")
			if how == 2 { // the pod stays, and the rank has a new id
				require.Contains(t, c.InForce, lost+"/0/2")
				require.Contains(t, c.InForce, lost+"/1/1")
			}
		})
	}
}

func TestWorldRestarts_WhenAllMembersAreLost(t *testing.T) {
	c := settled(t, 3, 1)
	for i := range c.Pods {
		c.die(&c.Pods[i], 0)
	}
	require.Len(t, Decide(c.World).Lost, 3)
	c.settle(t)
	require.Len(t, c.Layout, 3)
	require.Equal(t, 1, c.restarts)
}

// A container restarts in place, or its engine returns: its agent answers, and the pod remains a member.
func TestEndedPodIsNotLost_WhenRanksRespond(t *testing.T) {
	c := settled(t, 2, 1)
	c.Pods[0].Ended = true
	d := Decide(c.World)
	require.True(t, d.Settled())
}

func TestNoPodIsDeletedDuringTransition(t *testing.T) {
	c := settled(t, 2, 1)
	c.Wanted = 4
	c.do(t, Decide(c.World))
	c.start(2)
	c.start(3)
	c.do(t, Decide(c.World))
	require.True(t, c.Busy)
	c.Wanted = 2 // changed in flight
	d := Decide(c.World)
	require.Empty(t, d.Delete)
	require.Nil(t, d.Target)
}

// For random histories, the layout finally has the desired number of pods, with the desired standby pods, and the world
// never restarts while a member survives.
func TestRandomHistoriesConverge(t *testing.T) {
	deaths := 0
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 4))
		c := &cluster{World: World{Wanted: 1 + r.IntN(5), Standby: r.IntN(3)}, ranks: 1 + r.IntN(3), lives: map[string]int{}}
		for range 60 {
			switch r.IntN(10) {
			case 0:
				c.Wanted, c.Standby = 1+r.IntN(6), r.IntN(3)
			case 1:
				c.ShapeReached = c.Busy && c.ShapeReached
			case 2, 3:
				if len(c.Pods) > 0 {
					c.start(r.IntN(len(c.Pods)))
				}
			case 4:
				c.finish()
			case 5:
				if len(c.Pods) > 0 && !c.Busy {
					p := &c.Pods[r.IntN(len(c.Pods))]
					p.Deleting = true
					if !slices.Contains(c.Layout, p.UID) {
						c.remove(p.UID)
					}
				}
			case 6:
				if len(c.Pods) > 0 && r.IntN(3) == 0 {
					p := &c.Pods[r.IntN(len(c.Pods))]
					p.Replaceable = r.IntN(2) == 0
					c.die(p, r.IntN(3))
					deaths++
				}
			case 7:
				if len(c.Pods) > 0 {
					p := &c.Pods[r.IntN(len(c.Pods))]
					p.NodeGoing, p.DeletionCost = r.IntN(2) == 0, r.IntN(3)
				}
			default:
				d := Decide(c.World)
				require.Equal(t, d, Decide(c.World), "the same question, the same answer")
				before, alive := c.restarts, 0
				for _, uid := range c.Layout {
					if p := c.pod(uid); p != nil && !p.Ended && !slices.Contains(c.out, uid) {
						alive++
					}
				}
				c.do(t, d)
				if alive > 0 {
					require.Equal(t, before, c.restarts, "seed %d", seed)
				}
			}
		}
		c.settle(t)
		require.Len(t, c.Pods, c.Wanted+c.Standby, "seed %d", seed)
		require.Len(t, c.Layout, c.Wanted*c.ranks, "seed %d", seed)
		for _, p := range c.Pods {
			if slices.Contains(c.Layout, p.UID) {
				require.Subset(t, c.InForce, c.members(p.UID), "seed %d", seed)
			}
		}
	}
	require.Greater(t, deaths, 3000)
}
