package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"tangram.dev/api/v1alpha2"
	"tangram.dev/e2e/harness/cluster"
	"tangram.dev/e2e/kube"
)

// The demo's story, while requests stream: 4 -> 6 ranks, Tensor, Hybrid, Expert, 4 ranks; hot experts are moved; a rank
// dies.
func TestStory(t *testing.T) {
	k := namespace(t, "")
	serve(t, k, 4, nil)
	four := []string{"demo-0", "demo-1", "demo-2", "demo-3"}
	six := append(append([]string{}, four...), "demo-4", "demo-5")
	last := requireAtRest(t, k, four...)
	requireObjects(t, k, four)

	var released []corev1.Pod
	results := underLoad(t, k, func() {
		for _, s := range []struct {
			what   string
			ask    func() error
			pods   []string
			resize bool
		}{
			{"scale 6", func() error { return k.Scale(t.Context(), object, 6) }, six, true},
			{"TensorParallel", func() error {
				return k.Patch(t.Context(), object, `{"spec":{"parallelism":{"mode":"TensorParallel"}}}`)
			}, six, false},
			{"Hybrid", func() error {
				return k.Patch(t.Context(), object, `{"spec":{"parallelism":{"mode":null,"layers":[{"lastLayer":2,"expertGroup":2}]}}}`)
			}, six, false},
			{"ExpertParallel", func() error {
				return k.Patch(t.Context(), object, `{"spec":{"parallelism":{"mode":"ExpertParallel","layers":null}}}`)
			}, six, false},
			{"scale 4", func() error { return k.Scale(t.Context(), object, 4) }, four, true},
		} {
			t.Log(s.what)
			released = ranks(t, k)
			before, err := k.Transitions(t.Context(), name)
			require.NoError(t, err)
			require.NoError(t, s.ask())
			require.NoError(t, k.Wait(t.Context(), object, v1alpha2.ConditionReady, limit))
			now := requireAtRest(t, k, s.pods...)
			after, err := k.Transitions(t.Context(), name)
			require.NoError(t, err)
			require.Len(t, after, len(before)+1, "one transition per step")
			requireTransition(t, &after[len(after)-1], last, now, s.resize)
			if s.what == "Hybrid" { // the other layers are as in mode ExpertParallel
				layers := now.Status.Layers[len(now.Status.Layers)-1].LastLayer
				require.Equal(t, []v1alpha2.RangeStatus{{LastLayer: 2, ExpertGroup: 2, AttentionGroup: 1}, {FirstLayer: 3, LastLayer: layers, ExpertGroup: 1, AttentionGroup: 1}}, now.Status.Layers)
			}
			last = now
		}
	})
	requireObjects(t, k, four)
	requireEvents(t, k, released[4:])
	requireScreens(t, k)

	trace := newTrace(t)
	trace.Heat(true) // from the first request on, so that no window has other requests
	results = append(results, play(t, k, trace, func() {
		expertsGetHot(t, k)
		trace.Heat(false)
		aRankDies(t, k)
	})...)
	requireFelt(t, k)
	requireOneRanksTokens(t, results)
}

// requireFelt: the records of the four transitions have the clients' latencies, ten seconds after the end.
func requireFelt(t *testing.T, k *kube.Client) {
	t.Helper()
	eventually(t, "what clients felt of four transitions", func() (bool, string) {
		all, err := k.Transitions(t.Context(), name)
		require.NoError(t, err)
		felt, loaded, seen := 0, 0, ""
		for _, lt := range all {
			f := lt.Status.ClientImpact
			if f == nil || lt.Spec.From.Epoch == 0 {
				continue
			}
			felt++
			seen += fmt.Sprintf("%s: %+v; ", lt.Spec.Summary, *f)
			require.Positive(t, f.TokensPerSecondDuring, "clients were served in %s", lt.Spec.Summary)
			require.Positive(t, f.LongestGap.Duration)
			require.LessOrEqual(t, f.Silence.Duration, f.LongestGap.Duration, "who waits in silence waits for a token")
			require.Positive(t, lt.Status.PeakMemory.MeasuredBytes)
			require.LessOrEqual(t, lt.Status.PeakMemory.MeasuredBytes, lt.Status.PeakMemory.PlannedBytes)
			if kv := lt.Status.KVLoad; kv != nil {
				loaded++
				require.LessOrEqual(t, kv.MeanTokens, kv.MaxTokens)
				require.Equal(t, kv.MeanTokens*5/4, kv.BoundTokens)
			}
			require.GreaterOrEqual(t, lt.Status.SinceRequested.Duration, lt.Status.CompletionTime.Sub(lt.Status.StartTime.Time).Truncate(1e9))
		}
		require.True(t, felt < 4 || loaded > 0, "requests run, and no transition says where their KV is")
		return felt >= 4, seen
	})
}

// expertsGetHot: the operator replicates and moves experts, measures the gain, and reports it.
func expertsGetHot(t *testing.T, k *kube.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	done, why, err := cluster.Rebalance(ctx, k, name, cluster.RebalanceInterval)
	require.NoError(t, err, why)
	t.Logf("%d experts moved, %d bytes: balancedness %d permille, without %d; %s", done.Moves, done.Bytes, *done.MeasuredPermille, *done.CounterfactualPermille, why)
	require.Positive(t, done.Moves)
	require.Greater(t, *done.MeasuredPermille, *done.CounterfactualPermille, "it is more even than it would have been")
	all, err := k.Transitions(t.Context(), name)
	require.NoError(t, err)
	at := slices.IndexFunc(all, func(lt v1alpha2.LayoutTransition) bool { return lt.Spec.Kind == v1alpha2.KindRebalance })
	require.NotEqual(t, -1, at, "the rebalance has a record")
	s := all[at].Status
	require.Equal(t, v1alpha2.PhaseSucceeded, s.Phase, s.Message)
	require.Positive(t, s.Bytes.TCP+s.Bytes.Node)
	require.Zero(t, s.Bytes.Checkpoint, "what a rank holds does not come from the checkpoint")
	events, err := k.Events(t.Context())
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(events, func(e kube.Event) bool { return e.Reason == v1alpha2.EventRebalanced }))
}

// aRankDies kills all processes of its pod with -9: the world is repaired without it, and the restarted rank is a new
// member.
func aRankDies(t *testing.T, k *kube.Client) {
	t.Helper()
	victim := deployment(t, k).Status.Members[0]
	pod := slices.IndexFunc(ranks(t, k), func(p corev1.Pod) bool { return p.Name == victim.Pod })
	_, err := cluster.KillContainers(string(ranks(t, k)[pod].UID))
	require.NoError(t, err)
	repaired(t, k, 4)
	for _, m := range deployment(t, k).Status.Members {
		require.NotEqual(t, victim.ID, m.ID)
	}
}

// requireTransition: the record matches the worlds before and after it.
func requireTransition(t *testing.T, lt *v1alpha2.LayoutTransition, before, after *v1alpha2.MoEDeployment, resize bool) {
	t.Helper()
	spec, s := lt.Spec, lt.Status
	require.Equal(t, v1alpha2.PhaseSucceeded, s.Phase, s.Message)
	require.Equal(t, name, spec.MoEDeploymentName)
	require.Equal(t, after.Generation, spec.MoEDeploymentGeneration)
	require.Equal(t, after.UID, lt.OwnerReferences[0].UID)
	hybridly := `( \([^)]*\))?` // the groups of a layout in mode Hybrid
	require.Regexp(t, fmt.Sprintf("^%d ranks %s%s -> %d ranks %s%s$", before.Status.Ranks, before.Status.Mode, hybridly, after.Status.Ranks, after.Status.Mode, hybridly), spec.Summary)
	require.Equal(t, []any{before.Status.Epoch, before.Status.LayoutHash}, []any{spec.From.Epoch, spec.From.LayoutHash})
	require.Equal(t, []any{after.Status.Epoch, after.Status.LayoutHash}, []any{s.Epoch, spec.To.LayoutHash})
	require.Greater(t, s.Epoch, spec.From.Epoch)
	require.Regexp(t, "^[0-9a-f]{64}$", spec.PlanHash)
	var members []string
	for _, m := range after.Status.Members {
		members = append(members, m.ID)
	}
	require.Equal(t, members, spec.Members)
	require.EqualValues(t, after.Status.Ranks, spec.To.Ranks)
	require.Equal(t, after.SpecMode(), spec.To.Mode)

	require.Positive(t, spec.ExpertBytes)
	if resize {
		require.Equal(t, spec.ExpertBytesLowerBound, spec.ExpertBytes)
	}
	require.Len(t, s.Flips, int(spec.Flips))
	var sum v1alpha2.TransferredBytes
	for _, f := range s.Flips {
		sum.Process += f.Bytes.Process
		sum.Node += f.Bytes.Node
		sum.TCP += f.Bytes.TCP
		sum.Comm += f.Bytes.Comm
		sum.Checkpoint += f.Bytes.Checkpoint
		sum.KV += f.Bytes.KV
		sum.KVAhead += f.Bytes.KVAhead
		require.Contains(t, []string{"join", "layout", "leave"}, f.Kind)
		require.Positive(t, f.Duration.Duration)
	}
	require.Equal(t, s.Bytes, sum)
	require.Positive(t, s.Bytes.TCP+s.Bytes.Node, "bytes moved between ranks")
	require.Zero(t, s.Bytes.Checkpoint, "what a rank holds does not come from the checkpoint")
	require.NotNil(t, s.StartTime)
	require.NotNil(t, s.CompletionTime)
	took := s.CompletionTime.Sub(s.StartTime.Time)
	phases := s.Phases.Plan.Duration + s.Phases.Prepare.Duration + s.Phases.Stage.Duration + s.Phases.Flip.Duration + s.Phases.Retire.Duration
	require.Positive(t, s.Phases.Prepare.Duration)
	require.Positive(t, s.Phases.Stage.Duration)
	require.Positive(t, s.Phases.Flip.Duration)
	require.LessOrEqual(t, phases, took+took/10)
}

// requireObjects requires exactly the objects that a world owns for these pods.
func requireObjects(t *testing.T, k *kube.Client, pods []string) {
	t.Helper()
	want := map[string]bool{"demo-ca": true, "demo-gateway-tls": true}
	for _, p := range pods {
		want[p+"-tls"] = true
	}
	eventually(t, fmt.Sprintf("secrets %v", want), func() (bool, string) {
		var secrets corev1.SecretList
		require.NoError(t, k.Get(t.Context(), &secrets, "secrets"))
		seen := map[string]bool{}
		for _, s := range secrets.Items {
			seen[s.Name] = true
		}
		return fmt.Sprint(seen) == fmt.Sprint(want), fmt.Sprint(seen)
	})
	for _, o := range []string{"service/demo-engines", "service/demo-gateway", "deployment/demo-gateway", "configmap/demo-world", "serviceaccount/demo"} {
		var any map[string]any
		require.NoError(t, k.Get(t.Context(), &any, o))
	}
	for _, p := range ranks(t, k) {
		require.Equal(t, corev1.RestartPolicyNever, p.Spec.RestartPolicy)
		require.False(t, *p.Spec.AutomountServiceAccountToken, "a pod of ranks has no business with the API")
		for _, v := range p.Spec.Volumes {
			if v.ConfigMap != nil {
				var config corev1.ConfigMap
				require.NoError(t, k.Get(t.Context(), &config, "configmap/"+v.ConfigMap.Name))
				require.True(t, *config.Immutable)
			}
		}
	}
}

// requireEvents requires the events of the story; released are the pods that left at its end.
func requireEvents(t *testing.T, k *kube.Client, released []corev1.Pod) {
	t.Helper()
	require.Len(t, released, 2)
	eventually(t, "the story's events", func() (bool, string) {
		events, err := k.Events(t.Context())
		require.NoError(t, err)
		var all []string
		for _, e := range events {
			if e.Object == "MoEDeployment/"+name {
				all = append(all, e.Reason+" "+e.Message)
			}
		}
		text := strings.Join(all, "\n")
		for _, reason := range []string{v1alpha2.EventPodCreated, v1alpha2.EventTransitionStarted, v1alpha2.EventTransitionSucceeded} {
			if !strings.Contains(text, reason+" ") {
				return false, text
			}
		}
		for _, p := range released {
			found := false
			for _, line := range all {
				found = found || strings.HasPrefix(line, v1alpha2.EventPodReleased) && strings.Contains(line, p.Name) && strings.Contains(line, string(p.UID))
			}
			if !found {
				return false, text
			}
		}
		return true, ""
	})
}

// requireScreens: one line shows model, mode, pods and state; describe shows the last transitions; kubectl wait works
// for each condition, and for the end of a transition.
func requireScreens(t *testing.T, k *kube.Client) {
	t.Helper()
	table, err := k.Run(t.Context(), nil, "get", "moedeployment")
	require.NoError(t, err)
	t.Log("\n" + table)
	lines := strings.Split(strings.TrimSpace(table), "\n")
	require.Len(t, lines, 2)
	require.Equal(t, []string{"NAME", "MODEL", "MODE", "READY", "STATUS", "AGE"}, strings.Fields(lines[0]))
	require.Equal(t, []string{name, name, "ExpertParallel", "4/4", v1alpha2.ReasonServing}, strings.Fields(lines[1])[:5])
	for _, l := range lines {
		require.LessOrEqual(t, len(l), 100)
	}
	described, err := k.Run(t.Context(), nil, "describe", object)
	require.NoError(t, err)
	for _, words := range []string{"Recent Transitions:", "4 ranks ExpertParallel -> 6 ranks ExpertParallel", "6 ranks ExpertParallel -> 6 ranks TensorParallel",
		"6 ranks TensorParallel -> 6 ranks Hybrid (0-2=2/1)", "-> 6 ranks ExpertParallel", "6 ranks ExpertParallel -> 4 ranks ExpertParallel", "Layout Hash:", "Available"} {
		require.Contains(t, described, words)
	}
	for _, condition := range []string{"Available", "Ready", "Progressing=false", "Degraded=false"} {
		require.NoError(t, k.Wait(t.Context(), object, condition, limit))
	}
	all, err := k.Transitions(t.Context(), name)
	require.NoError(t, err)
	require.NoError(t, k.Wait(t.Context(), "layouttransition/"+all[0].Name, v1alpha2.TransitionComplete, limit))
}
