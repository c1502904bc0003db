package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/utils/ptr"

	"tangram.dev/api/v1alpha2"
	"tangram.dev/e2e/kube"
)

// processesOf returns the folders in /proc of a pod's processes that run a program, in any container.
func processesOf(t *testing.T, uid, program string) []string {
	t.Helper()
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	require.NoError(t, err)
	var found []string
	for _, path := range groups {
		// The kubelet writes UIDs with '_' or '-' in the names of cgroups.
		group, err := os.ReadFile(path)
		if err != nil || !strings.Contains(strings.ReplaceAll(string(group), "_", "-"), uid) {
			continue
		}
		if exe, err := os.Readlink(filepath.Join(filepath.Dir(path), "exe")); err == nil && filepath.Base(exe) == program {
			found = append(found, filepath.Dir(path))
		}
	}
	require.NotEmpty(t, found, "no %s runs in pod %s", program, uid)
	return found
}

// kill kills a program in a pod with -9.
func kill(t *testing.T, uid, program string) {
	t.Helper()
	for _, process := range processesOf(t, uid, program) {
		pid, err := strconv.Atoi(filepath.Base(process))
		require.NoError(t, err)
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	}
}

// repaired waits until a repair is recorded and the number of ranks is restored.
func repaired(t *testing.T, k *kube.Client, width int32) {
	t.Helper()
	eventually(t, "a repair, and the width again", func() (bool, string) {
		all, err := k.Events(t.Context())
		require.NoError(t, err)
		told := false
		for _, e := range all {
			told = told || e.Reason == v1alpha2.EventRepaired
			require.NotEqual(t, v1alpha2.EventWorldRestarted, e.Reason, "the survivors served on")
		}
		d := deployment(t, k)
		return told && d.Status.Ranks == width, fmt.Sprintf("told %t, width %d, state %s", told, d.Status.Ranks, d.Status.State)
	})
	require.NoError(t, k.Wait(t.Context(), object, v1alpha2.ConditionReady, limit))
}

// An engine that dies alone restarts in its pod: no pod is replaced, no request is lost.
func TestEngineKilled(t *testing.T) {
	k := namespace(t, "")
	serve(t, k, 3, nil)
	before := ranks(t, k)
	results := underLoad(t, k, func() {
		kill(t, string(before[1].UID), "tangram-engine")
		repaired(t, k, 3)
	})
	after := ranks(t, k)
	for i := range before {
		require.Equal(t, before[i].UID, after[i].UID)
	}
	requireAtRest(t, k, "demo-0", "demo-1", "demo-2")
	requireOneRanksTokens(t, results)
}

// Pods are evicted one at a time, as in the world's disruption budget, and each leaves with a transition.
func TestEvicted(t *testing.T) {
	k := namespace(t, "")
	serve(t, k, 3, nil)
	eventually(t, "a budget of one", func() (bool, string) {
		var pdb policyv1.PodDisruptionBudget
		require.NoError(t, k.Get(t.Context(), &pdb, "poddisruptionbudget", name+"-engines"))
		return pdb.Status.DisruptionsAllowed == 1 && pdb.Status.ObservedGeneration == pdb.Generation, fmt.Sprintf("%+v", pdb.Status)
	})
	evict := func(pod string) error {
		ns := strings.ToLower(t.Name())
		_, err := k.Run(t.Context(), strings.NewReader(fmt.Sprintf(
			`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":%q,"namespace":%q}}`, pod, ns)),
			"create", "--raw", fmt.Sprintf("/api/v1/namespaces/%s/pods/%s/eviction", ns, pod), "-f", "-")
		return err
	}
	victim := ranks(t, k)[1]
	results := underLoad(t, k, func() {
		require.NoError(t, evict(victim.Name))
		require.ErrorContains(t, evict("demo-0"), "disruption budget", "one at a time")
		eventually(t, "three ranks without the pod that was evicted", func() (bool, string) {
			pods := ranks(t, k)
			ok := len(pods) == 3 && deployment(t, k).Status.Ranks == 3
			for _, p := range pods {
				ok = ok && p.UID != victim.UID && p.DeletionTimestamp == nil
			}
			return ok, fmt.Sprint(names(pods))
		})
	})
	requireOneRanksTokens(t, results)
	all, err := k.Transitions(t.Context(), name)
	require.NoError(t, err)
	for _, lt := range all {
		require.NotEqual(t, v1alpha2.KindRepair, lt.Spec.Kind, "it left, it did not die")
	}
}

// Deleting a namespace removes its world without waiting for grace periods, because its pods need no drain.
func TestNamespaceDeleted(t *testing.T) {
	k := namespace(t, "")
	const grace = 7200 * time.Second // longer than any slow machine needs
	serve(t, k, 2, func(s *v1alpha2.MoEDeploymentSpec) {
		s.Template.Spec.TerminationGracePeriodSeconds = ptr.To(int64(grace / time.Second))
	})
	pods := ranks(t, k)
	require.EqualValues(t, grace/time.Second, *pods[0].Spec.TerminationGracePeriodSeconds)
	began := time.Now()
	require.NoError(t, up.Kube.Delete(t.Context(), "namespace/"+strings.ToLower(t.Name()), true)) // the first deletion
	took := time.Since(began)
	t.Logf("gone in %.1f s", took.Seconds())
	require.Less(t, took, grace)
	for _, p := range pods {
		requireNoProcesses(t, string(p.UID))
	}
}
