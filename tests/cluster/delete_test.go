package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/api/v1alpha2"
	"tangram.dev/e2e/kube"
)

// A deleted pod keeps serving until it has left; another one replaces it.
func TestPodDeletedByHand(t *testing.T) {
	k := namespace(t, "")
	serve(t, k, 3, nil)
	victim := ranks(t, k)[1]
	results := underLoad(t, k, func() {
		require.NoError(t, k.Delete(t.Context(), "pod/"+victim.Name, false))
		eventually(t, "three ranks without the pod that was deleted", func() (bool, string) {
			d, pods := deployment(t, k), ranks(t, k)
			ok := len(pods) == 3 && d.Status.Ranks == 3
			for _, p := range pods {
				ok = ok && p.UID != victim.UID && p.DeletionTimestamp == nil
			}
			for _, m := range d.Status.Members {
				ok = ok && !strings.Contains(m.ID, string(victim.UID))
			}
			return ok, fmt.Sprintf("%v, members %+v", names(pods), d.Status.Members)
		})
		require.NoError(t, k.Wait(t.Context(), object, v1alpha2.ConditionReady, limit))
	})
	// Its name is in use until it is gone, so the replacement has the next ordinal.
	requireAtRest(t, k, "demo-0", "demo-2", "demo-3")
	requireOneRanksTokens(t, results)
	requireNoProcesses(t, string(victim.UID))
}

// A world that is deleted in the middle of a transition leaves nothing.
func TestDeletedDuringTransition(t *testing.T) {
	k := namespace(t, "")
	serve(t, k, 2, nil)
	require.NoError(t, k.Scale(t.Context(), object, 4))
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	running := ""
	err := k.Watch(ctx, name, func(d *v1alpha2.MoEDeployment) {
		if d.Status.Transition != nil && running == "" {
			running = d.Status.Transition.Name
			cancel()
		}
	})
	require.NotEmpty(t, running, "no transition was seen: %v", err)
	require.True(t, errors.Is(err, context.Canceled), "%v", err)
	requireDeleted(t, k)
}

// requireDeleted deletes the world, and waits until no object and no process of it is left.
func requireDeleted(t *testing.T, k *kube.Client) {
	t.Helper()
	var uids []string
	for _, p := range ranks(t, k) {
		uids = append(uids, string(p.UID))
	}
	began := time.Now()
	require.NoError(t, k.Delete(t.Context(), object, true))
	t.Logf("deleted in %.1f s", time.Since(began).Seconds())
	const kinds = "moedeployments,layouttransitions,pods,secrets,services,deployments,replicasets,configmaps,serviceaccounts"
	eventually(t, "nothing is left", func() (bool, string) {
		out, err := k.Run(t.Context(), nil, "get", kinds, "-o", "name")
		require.NoError(t, err)
		var left []string
		for line := range strings.Lines(out) {
			switch line = strings.TrimSpace(line); line {
			case "configmap/kube-root-ca.crt", "serviceaccount/default": // every namespace has them
			default:
				left = append(left, line)
			}
		}
		return len(left) == 0, strings.Join(left, " ")
	})
	for _, uid := range uids {
		requireNoProcesses(t, uid)
	}
}

// requireNoProcesses waits until no process is in a pod's cgroups.
func requireNoProcesses(t *testing.T, uid string) {
	t.Helper()
	eventually(t, "no process of pod "+uid, func() (bool, string) {
		groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
		require.NoError(t, err)
		for _, path := range groups {
			if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), uid) {
				return false, path
			}
		}
		return true, ""
	})
}
