package main

import (
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tangram.dev/api/v1alpha2"
	"tangram.dev/e2e/load"
)

func TestScreenRedrawsBelowPermanentLines(t *testing.T) {
	var out strings.Builder
	s := &screen{tty: true, out: &out, cols: func() int { return 6 }}
	s.show("one", "a line too long")
	s.say("stays")
	s.stop()
	require.Equal(t, "one\na lin\n"+ // clipped: a line that wraps would occupy two
		"\x1b[2A\r\x1b[Jstays\n"+"one\na lin\n"+
		"\x1b[2A\r\x1b[J", out.String())

	out.Reset()
	s = &screen{out: &out, cols: func() int { return 80 }}
	s.show("gone")
	s.say("stays")
	s.stop()
	require.Equal(t, "stays\n", out.String(), "no terminal, no control characters")
}

func TestDisplayShowsLoadLayoutAndTransition(t *testing.T) {
	d := newDisplay(&load.Counters{})
	d.step, d.command = "2/4 EP -> TP", "kubectl patch"
	lines, quiet := d.lines(d.started.Add(3 * time.Second))
	require.Contains(t, lines[0], "2/4 EP -> TP: kubectl patch (3 s of 3 s)")
	require.Contains(t, lines[1], "0 tokens/s, requests 0 open, 0 done, 0 lost")

	d.world = &v1alpha2.MoEDeployment{Spec: v1alpha2.MoEDeploymentSpec{Replicas: 6}, Status: v1alpha2.MoEDeploymentStatus{
		Epoch: 3, Mode: v1alpha2.ModeExpert, Ranks: 6, ReadyReplicas: 5, Replicas: 6, State: "Transition",
		Transition: &v1alpha2.CurrentTransition{Name: "demo-3-ab", Phase: "stage", Flip: 1, Flips: 2, BytesDone: 1 << 20, BytesTotal: 4 << 20}}}
	lines, moving := d.lines(d.started.Add(4 * time.Second))
	require.Contains(t, lines[2], "epoch 3, ExpertParallel, 6 wide, pods 5 ready of 6 (6 wanted), Transition")
	require.Contains(t, lines[3], "demo-3-ab, flip 1 of 2, stage     [#####...............] 1.0 MiB of 4.0 MiB")
	require.NotEqual(t, quiet, moving)
	d.world.Status.Transition.BytesDone = 2 << 20
	_, same := d.lines(d.started.Add(5 * time.Second))
	require.Equal(t, moving, same, "bytes alone make no new line where lines stay")
	d.world.Status.Conditions = []metav1.Condition{{Type: v1alpha2.ConditionDegraded, Status: "True", Reason: "PodsFailing", Message: "demo-5: no such image"}}
	lines, degraded := d.lines(d.started.Add(6 * time.Second))
	require.Contains(t, lines[2], "demo-5: no such image")
	require.NotEqual(t, same, degraded)
}

func TestBarKeepsWidth(t *testing.T) {
	for _, c := range []struct {
		done, total int64
		want        int
	}{{0, 0, 0}, {-1, 5, 0}, {5, 5, 20}, {9, 5, 20}, {1, 2, 10}} {
		require.Equal(t, "["+strings.Repeat("#", c.want)+strings.Repeat(".", 20-c.want)+"]", bar(c.done, c.total))
	}
}

func TestTransitionRecord(t *testing.T) {
	start := metav1.NewMicroTime(time.Unix(100, 500_000))
	end := metav1.NewMicroTime(start.Add(2500 * time.Millisecond))
	lt := &v1alpha2.LayoutTransition{
		Spec: v1alpha2.LayoutTransitionSpec{From: v1alpha2.TransitionEnd{Epoch: 3}, To: v1alpha2.TransitionEnd{LayoutHash: "t"}, PlanHash: "p", Flips: 2,
			ExpertBytes: 10, ExpertBytesLowerBound: 9, DenseBytes: 8},
		Status: v1alpha2.LayoutTransitionStatus{Phase: v1alpha2.PhaseSucceeded, Epoch: 5, Retries: 1, StartTime: &start, CompletionTime: &end,
			Bytes:      v1alpha2.TransferredBytes{Process: 1, Node: 2, TCP: 3, Checkpoint: 4, KV: 5, KVAhead: 2},
			PeakMemory: &v1alpha2.PeakMemory{MeasuredBytes: 6, PlannedBytes: 7},
			KVLoad:     &v1alpha2.KVLoad{MaxTokens: 12, MeanTokens: 11},
			Phases:     v1alpha2.PhaseDurations{Stage: metav1.Duration{Duration: 1500 * time.Millisecond}}},
	}
	r, err := newRecord(lt)
	require.NoError(t, err)
	require.EqualValues(t, []any{uint64(3), uint64(5), uint64(10), uint64(9), uint64(8), uint64(3), uint64(5), 2, 1, 1.5, 2.5},
		[]any{r.FromEpoch, r.Epoch, r.ExpertBytes, r.ExpertBoundBytes, r.DenseBytes, r.Bytes.TCP, r.Bytes.KV, r.PlannedFlips, r.Retries, r.Seconds.Stage, r.TotalSeconds})
	require.EqualValues(t, []uint64{2, 6, 7, 12, 11}, []uint64{r.Bytes.KVAhead, r.PeakBytes, r.PlannedPeakBytes, r.KVMaxTokens, r.KVMeanTokens})
	require.Equal(t, start.Time, r.Started)
	lt.Status.Phase, lt.Status.Message = v1alpha2.PhaseFailed, "rank 2 is full"
	_, err = newRecord(lt)
	require.ErrorContains(t, err, "is Failed (rank 2 is full)")
}

// The demo's manifests match the API's types exactly.
func TestManifestsMatchAPI(t *testing.T) {
	d, _, err := readManifest(filepath.Join("../../..", manifests, "20-moedeployment.yaml"))
	require.NoError(t, err)
	require.Equal(t, world, d.Name)
	require.EqualValues(t, 4, d.Spec.Replicas)
	require.EqualValues(t, "deep", d.Spec.Model.Source.PersistentVolumeClaim.Path)
}

// Not parallel to other tests: all share the terminal.
func TestDuring_WhenTerminalIsRedrawn(t *testing.T) {
	was := terminal
	defer func() { terminal = was }()
	var out strings.Builder
	terminal = &screen{tty: true, out: &out, cols: func() int { return 80 }}
	seen := make(chan struct{})
	stop := during(true, sync.OnceValue(func() string { close(seen); return "3 of 9 requests" }))
	<-seen
	stop()
	require.Contains(t, out.String(), "s] 3 of 9 requests\n")
	require.True(t, strings.HasSuffix(out.String(), "\x1b[1A\r\x1b[J"), "the line is removed")
}
