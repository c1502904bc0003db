package fleet

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func pod(name string, ordinal int, members ...string) Pod {
	return Pod{Name: name, UID: "u-" + name, Ordinal: ordinal, Members: members}
}

// serving is a settled world of one pod.
func serving() World {
	return World{Wanted: 1, Pods: []Pod{pod("a", 0, "u-a/0/1")}, Layout: []string{"u-a"}, InForce: []string{"u-a/0/1"}, ShapeReached: true}
}

func TestSettled_WhenDecisionIsEmpty(t *testing.T) {
	require.True(t, (&Decision{}).Settled())
	for _, d := range []Decision{{Create: []int{0}}, {Delete: []Deletion{{}}}, {Target: []string{"a"}}, {Waiting: []string{"a"}}, {Repair: true},
		{Create: []int{0}, Waiting: []string{"a"}}, {Delete: []Deletion{{}}, Waiting: []string{"a"}}, {Target: []string{"a"}, Waiting: []string{"a"}}} {
		require.Falsef(t, d.Settled(), "%+v", d)
	}
}

func TestSparePodsJoinByLowestOrdinal(t *testing.T) {
	w := serving()
	w.Wanted = 2
	w.Pods = append(w.Pods, pod("d", 3, "u-d/0/1"), pod("b", 1, "u-b/0/1"))
	d := Decide(w)
	require.Equal(t, []string{"u-a/0/1", "u-b/0/1"}, d.Target)
	require.Len(t, d.Delete, 1)
	require.Equal(t, "d", d.Delete[0].Name)
}

// Standby pods join first, whatever their ordinal. A replacement is created, and the world does not wait for it.
func TestStandbyPodsJoinFirst(t *testing.T) {
	w := serving()
	w.Standby = 2
	d := Decide(w)
	require.Equal(t, Decision{StandBy: []int{1, 2}}, d)
	require.False(t, d.Settled())
	w.Pods = append(w.Pods, pod("b", 1), pod("c", 2, "u-c/0/1"))
	d = Decide(w)
	require.Equal(t, Decision{Standing: []string{"u-c", "u-b"}}, d)
	require.True(t, d.Settled(), "one of them is not ready, which is nobody's business yet")
	w.Wanted = 2
	require.Equal(t, Decision{StandBy: []int{3}, Standing: []string{"u-b"}, Target: []string{"u-a/0/1", "u-c/0/1"}}, Decide(w))
	w.Pods[2].NodeGoing, w.Pods[1].Members = true, []string{"u-b/0/1"}
	require.Equal(t, []string{"u-a/0/1", "u-b/0/1"}, Decide(w).Target, "rather than one whose node goes")
}

// Leaving pods become standby, up to the desired number.
func TestLeavingPodsBecomeStandby(t *testing.T) {
	c := settled(t, 3, 2)
	c.Wanted, c.Standby = 1, 1
	c.settle(t)
	require.Equal(t, []string{"w-0", "w-1"}, names(c))
	require.Len(t, c.Layout, 2)
	c.Wanted = 2
	d := Decide(c.World)
	require.Equal(t, []int{2}, d.StandBy)
	require.Empty(t, d.Create)
	require.Len(t, d.Target, 4, "at once")
	c.settle(t)
	require.Equal(t, []string{"w-0", "w-1", "w-2"}, names(c))
	c.Standby = 0
	c.settle(t)
	require.Equal(t, []string{"w-0", "w-1"}, names(c))
}

// A standby pod replaces a dead pod.
func TestStandbyPodReplacesLostPod(t *testing.T) {
	c := settled(t, 2, 1)
	c.Standby = 1
	c.settle(t)
	stands := c.Pods[2].UID
	require.NotContains(t, c.Layout, stands)
	c.die(&c.Pods[0], 1)
	c.do(t, Decide(c.World)) // the repair
	for i := range c.Pods {
		c.start(i)
	}
	require.Contains(t, Decide(c.World).Target, c.members(stands)[0])
	c.settle(t)
	require.Len(t, c.Pods, 3)
}

// Existing pods count, ready or not: only missing ones are created.
func TestOnlyMissingPodsAreCreated(t *testing.T) {
	w := serving()
	w.Wanted = 4
	dead := pod("c", 2, "u-c/0/1")
	dead.Ended = true // its agent answered last, but it is useless, and must not be replaced
	w.Pods = append(w.Pods, pod("b", 1), dead)
	d := Decide(w)
	require.Equal(t, []int{3}, d.Create)
	require.Equal(t, []string{"b", "c"}, d.Waiting)
	require.Nil(t, d.Target)
	require.Empty(t, d.Delete)
}

// Lost pods are reported by UID, even if the world is not marked broken yet.
func TestLostPodsAreRepairedBeforeWorldIsBroken(t *testing.T) {
	w := serving()
	w.Pods = nil
	require.Equal(t, Decision{Repair: true, Lost: []string{"u-a"}}, Decide(w))
	w = serving()
	w.Pods[0].Ended, w.Pods[0].Members = true, nil
	require.Equal(t, Decision{Repair: true, Lost: []string{"u-a"}}, Decide(w))
}

// A pod outside the layout that is being deleted does not join, and the world does not hurry for it.
func TestDeletedSparePodIsReplaced(t *testing.T) {
	w := serving()
	w.Wanted = 2
	gone := pod("b", 1, "u-b/0/1")
	gone.Deleting = true
	w.Pods = append(w.Pods, gone)
	for _, w.ShapeReached = range []bool{true, false} {
		d := Decide(w)
		require.Equal(t, []int{2}, d.Create)
		require.Nil(t, d.Target)
	}
}

// Members wait for the whole width, even if the shape differs.
func TestLayoutIsKept_UntilAllPodsAreReady(t *testing.T) {
	w := serving()
	w.Wanted, w.ShapeReached = 2, false
	w.Pods = append(w.Pods, pod("b", 1))
	d := Decide(w)
	require.Nil(t, d.Target)
	require.Equal(t, []string{"b"}, d.Waiting)
	w.Pods[1].Members = []string{"u-b/0/1"}
	require.Equal(t, []string{"u-a/0/1", "u-b/0/1"}, Decide(w).Target)
}
