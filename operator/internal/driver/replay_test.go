package driver

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/bits"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/driver/drivertest"
	"tangram.dev/operator/internal/testkit"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Compares the fence's decisions with their model. Random histories of tests/model/gate.pml contain a leader's view and
// its ruling. The view, as agent reports, goes through newTruth, scene and survivors, and the ruling must be equal.
var (
	modelRuns = flag.Int("model.runs", 100, "histories of each scenario of the model")
	modelSeed = flag.Int("model.seed", 0, "seed of the first history of the second half; 0: SEED * 10000")
)

const (
	modelFile  = "../../../tests/model/gate.pml"
	modelRanks = 3
	modelBase  = 10 // the model's epoch 0
)

// modelRank is a rank in a leader's view; masks have one bit per rank.
type modelRank struct {
	up                     bool
	epoch, repair, members int // repair: the one that made its layout; members of the layout, 0: in none
	stopped                bool
	staged                 int
	armed                  bool
	mending                int
	mayMend, held          bool
}

// modelLook is the view of a leader, and its ruling.
type modelLook struct {
	scenario, view, reach, survivors, fences, stands int
	leads                                            [3]int // attempt by epoch
	ranks                                            [modelRanks]modelRank
	to, by, alive, old                               int
}

func (l *modelLook) membersOf(epoch int) int {
	switch {
	case l.scenario == 3 && epoch == 0, l.scenario == 5, l.scenario == 7:
		return 0b011
	case l.scenario == 4 && epoch > 0:
		return 0b110
	}
	return 0b111
}

func modelMember(k int) string { return fmt.Sprintf("p%d/0/1", k) }

func modelNames(mask int) (out []string) {
	for k := range modelRanks {
		if mask>>k&1 == 1 {
			out = append(out, modelMember(k))
		}
	}
	return out
}

// layoutOf returns the layout of an epoch, made by a plan (repair 0) or by a fence's repair.
func (l *modelLook) layoutOf(t *testing.T, epoch, repair, members int) (*tangramv1.Layout, []byte) {
	out := &tangramv1.Layout{World: "w", Revision: fmt.Sprint("by repair ", repair), Epoch: uint64(modelBase + epoch)}
	for _, id := range modelNames(members) {
		out.Members = append(out.Members, &tangramv1.Member{Id: id})
	}
	hash, err := layout.Hash(out)
	require.NoError(t, err)
	return out, hash
}

// status returns the status message of a rank's agent.
func (l *modelLook) status(t *testing.T, k int, geometry *tangramv1.Geometry) *tangramv1.StatusResponse {
	r := l.ranks[k]
	s := &tangramv1.StatusResponse{World: "w", Geometry: geometry, Revision: "r1", Address: &tangramv1.PeerAddress{Agent: fmt.Sprint("a", k)}}
	rank := &tangramv1.RankStatus{Member: &tangramv1.Member{Id: modelMember(k)}, InWorld: r.members != 0,
		Engine: &tangramv1.EngineStatus{Attached: true, Stopped: r.stopped}, Transition: &tangramv1.TransitionStatus{Phase: tangramv1.Phase_PHASE_IDLE}}
	s.Ranks = []*tangramv1.RankStatus{rank}
	members := r.members
	if members == 0 && r.epoch > 0 {
		members = l.membersOf(r.epoch) // it left with the flip to this epoch
	}
	if members != 0 {
		s.Layout, s.LayoutHash = l.layoutOf(t, r.epoch, r.repair, members)
		s.Epoch = s.Layout.Epoch
	}
	for i, id := range modelNames(r.members) {
		for j := range modelRanks {
			if id == modelMember(j) && j != k && (!l.ranks[j].up || l.reach>>j&1 == 0 || l.reach>>k&1 == 0) {
				rank.Engine.Unreachable = append(rank.Engine.Unreachable, uint32(i))
			}
		}
	}
	in := rank.Transition
	under := func(attempt, epoch int, permitted bool) {
		in.Attempt, in.TargetEpoch, in.Phase = uint64(attempt), uint64(modelBase+epoch), tangramv1.Phase_PHASE_STAGED
		if permitted {
			in.Phase = tangramv1.Phase_PHASE_PERMITTED
		}
	}
	switch {
	case r.mending > 0:
		under(100+r.mending, l.stands+1, r.mayMend)
		in.Held = r.held
	case r.staged > 0:
		under(r.staged, r.epoch+1, r.armed)
	case r.epoch > 0: // the flip to its layout; a leaver retires it only after the others have stepped
		in.Attempt, in.Phase = uint64(l.leads[min(r.epoch, 2)]), tangramv1.Phase_PHASE_FLIPPED
		if r.repair > 0 {
			in.Attempt = uint64(100 + r.repair)
		}
		in.TargetEpoch, in.TargetHash = s.Epoch, s.LayoutHash
	}
	return s
}

// ruling returns the shipping code's ruling on the leader's view.
func (l *modelLook) ruling(t *testing.T, geometry *tangramv1.Geometry) ruling {
	record := Membership{Epoch: modelBase, Members: modelNames(l.membersOf(0))}
	if l.fences > 0 {
		at := uint64(modelBase + l.stands)
		record = Membership{Epoch: at, Members: modelNames(l.survivors), Fence: &Fence{FromEpoch: at, Outcome: "stay", Epoch: at,
			Survivors: modelNames(l.survivors & l.membersOf(0))}}
		for _, id := range modelNames(l.membersOf(0) &^ l.survivors) {
			record.Fence.Lost = append(record.Fence.Lost, Lost{Member: id})
		}
	}
	var pods []string
	var statuses []*tangramv1.StatusResponse
	var errs []error
	for k := range modelRanks {
		if (l.scenario == 5 || l.scenario == 7) && k == 2 {
			continue // a world of two
		}
		pods = append(pods, fmt.Sprint("p", k))
		if l.ranks[k].up && l.view>>k&1 == 1 {
			statuses, errs = append(statuses, l.status(t, k, geometry)), append(errs, nil)
		} else {
			statuses, errs = append(statuses, nil), append(errs, errors.New("no answer"))
		}
	}
	truth, err := newTruth("w", record, pods, statuses, errs)
	require.NoError(t, err)
	return survivors(truth.scene(true))
}

func (l *modelLook) check(t *testing.T, geometry *tangramv1.Geometry) {
	got := l.ruling(t, geometry)
	require.Emptyf(t, got.running, "the model rules, the driver waits")
	require.NotEqual(t, tangramv1.Outcome_OUTCOME_UNSPECIFIED, got.outcome)
	want := modelNames(l.alive)
	if bits.OnesCount(uint(l.alive)) == 1 && l.old == 0b111 {
		want = nil // one of three does not continue
	}
	if l.scenario == 5 && l.view == 0b111 {
		require.Lenf(t, got.survivors, len(want), "of two that do not reach each other either may go on, and only one")
		return
	}
	require.Equalf(t, want, got.survivors, "survivors; the driver lost %v", got.lost)
	require.Equal(t, uint64(modelBase+l.to), got.standOn, "the epoch that they stand on")
	// The model's leader rules only when all answering ranks are stopped.
	for k, r := range l.ranks {
		if l.scenario == 5 || !r.up || r.members == 0 || l.survivors&l.view&l.reach>>k&1 == 0 {
			continue
		}
		late := *l
		late.ranks[k].stopped = false
		waits := late.ruling(t, geometry)
		require.NotEmptyf(t, waits.running, "rank %d has not stopped, the driver rules", k)
		require.Equal(t, tangramv1.Outcome_OUTCOME_UNSPECIFIED, waits.outcome)
	}
}

// modelLooks returns the views of a random run of this many steps; the last view may be incomplete. Spin leaves files
// in its folder.
func modelLooks(t *testing.T, dir, model string, scenario, seed, steps int) (out []modelLook, cut bool) {
	command := exec.CommandContext(t.Context(), "spin", "-DTRACE", fmt.Sprint("-DSCENARIO=", scenario), fmt.Sprint("-n", seed), fmt.Sprint("-u", steps), "-T", model)
	command.Dir = dir
	text, err := command.CombinedOutput()
	require.NoErrorf(t, err, "spin (e2e/setup/install.sh installs it): %s", text)
	var now modelLook
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case "@rank":
			var k int
			var r modelRank
			var up, stopped, armed, mayMend, held int
			_, err := fmt.Sscan(rest, &k, &up, &r.epoch, &r.repair, &r.members, &stopped, &r.staged, &armed, &r.mending, &mayMend, &held)
			require.NoError(t, err, rest)
			r.up, r.stopped, r.armed, r.mayMend, r.held = up == 1, stopped == 1, armed == 1, mayMend == 1, held == 1
			now.ranks[k] = r
		case "@look":
			_, err := fmt.Sscan(rest, &now.scenario, &now.view, &now.reach, &now.survivors, &now.fences, &now.stands, &now.leads[1], &now.leads[2])
			require.NoError(t, err, rest)
			cut = true
		case "@rules":
			_, err := fmt.Sscan(rest, &now.to, &now.by, &now.alive, &now.old)
			require.NoError(t, err, rest)
			out, cut = append(out, now), false
		}
	}
	return out, cut
}

// A run ends after its steps, so the last view may be incomplete. It is dropped.
func TestModelViewIsDropped_WhenRunIsCutOff(t *testing.T) {
	model, err := filepath.Abs(modelFile)
	require.NoError(t, err)
	dir, cuts := t.TempDir(), 0
	whole, _ := modelLooks(t, dir, model, 2, 1, 1200)
	for steps := 1; cuts < 2; steps++ {
		require.Less(t, steps, 1200, "no run ended in a look")
		looks, cut := modelLooks(t, dir, model, 2, 1, steps)
		require.True(t, slices.Equal(whole[:len(looks)], looks))
		if cut {
			cuts++
		}
	}
}

func TestFenceDecisionsMatchModel(t *testing.T) {
	runs, fixed := *modelRuns, *modelRuns/2 // one half is the same for every SEED
	first := *modelSeed
	if first == 0 {
		first = int(testkit.Seed(t) % 100_000 * 10_000) // spin reads a seed of 31 bits
	}
	if testing.Short() {
		runs, fixed = 15, 15
	}
	t.Logf("%d histories a scenario, from seeds 1 and %d (-model.seed)", runs, first)
	model, err := filepath.Abs(modelFile)
	require.NoError(t, err)
	world, err := drivertest.NewWorld("w")
	require.NoError(t, err)
	status, err := world.Start(drivertest.Pod{Name: "p", UID: "p", Address: "a", Ranks: 1}).Status(t.Context(), "w")
	require.NoError(t, err)
	scenarios := []int{1, 2, 3, 4, 5, 6, 7}
	seen := make([][]modelLook, len(scenarios))
	t.Run("scenario", func(t *testing.T) {
		for i, scenario := range scenarios {
			t.Run(fmt.Sprint(scenario), func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				for n := range runs {
					seed := 1 + n
					if n >= fixed {
						seed = first + n
					}
					looks, _ := modelLooks(t, dir, model, scenario, seed, 1200)
					for _, l := range looks {
						seen[i] = append(seen[i], l)
						l.check(t, status.Geometry)
						if t.Failed() {
							t.Fatalf("scenario %d, seed %d: %+v", scenario, seed, l)
						}
					}
				}
			})
		}
	})
	// The comparison counts only if each kind of ruling occurred.
	kinds := map[string]int{}
	for _, l := range slices.Concat(seen...) {
		kinds[l.kind()]++
	}
	t.Log(kinds)
	if testing.Short() {
		return
	}
	for _, kind := range []string{"all stay", "some lost, stay", "forward by plan", "forward by repair", "after a fence"} {
		require.Positivef(t, kinds[kind], "no history has: %s", kind)
	}
}

func (l *modelLook) kind() string {
	behind := slices.ContainsFunc(l.ranks[:], func(r modelRank) bool { return r.up && r.members != 0 && r.epoch < l.to })
	switch {
	case behind && l.by > 0:
		return "forward by repair"
	case behind:
		return "forward by plan"
	case l.fences > 0:
		return "after a fence"
	case l.alive == l.old:
		return "all stay"
	}
	return "some lost, stay"
}
