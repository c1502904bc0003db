package cluster

import (
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"tangram.dev/api/v1alpha2"
)

// Pods of one node share memory: bytes of a switch cross the network only between nodes.
func TestNodeMemory(t *testing.T) {
	t.Parallel()
	k := namespace(t, "")
	_, err := k.Run(t.Context(), nil, "label", "--overwrite", "namespace/"+k.Namespace,
		v1alpha2.NodeMemorySharingLabel+"="+v1alpha2.NodeMemorySharingAllowed, "pod-security.kubernetes.io/enforce=privileged")
	require.NoError(t, err)
	serve(t, k, 3, func(s *v1alpha2.MoEDeploymentSpec) { s.Network.NodeMemorySharing = v1alpha2.NodeMemorySharingEnabled })
	pods := ranks(t, k)
	on := map[string]int{}
	for _, p := range pods {
		on[p.Spec.NodeName]++
		requireClosedFolder(t, &p, deployment(t, k))
	}
	require.LessOrEqual(t, len(on), 2, "two nodes: at least two of three pods share one")

	results := client(t, k).Repeat(t.Context(), newTrace(t), 3, 3)
	require.NoError(t, k.Patch(t.Context(), object, `{"spec":{"parallelism":{"mode":"TensorParallel"}}}`))
	require.NoError(t, k.Wait(t.Context(), object, v1alpha2.ConditionReady, limit))
	results = append(results, client(t, k).Repeat(t.Context(), newTrace(t), 3, 3)...)
	for _, r := range results {
		require.NoError(t, r.Err)
	}
	requireOneRanksTokens(t, results)
	all, err := k.Transitions(t.Context(), name)
	require.NoError(t, err)
	bytes := all[len(all)-1].Status.Bytes
	t.Logf("pods by node %v: %d bytes by shared memory, %d by TCP", on, bytes.Node, bytes.TCP)
	require.Positive(t, bytes.Node, "a pod has one rank: what is shared is another pod's")
	require.Equal(t, len(on) > 1, bytes.TCP > 0, "%+v", bytes)
}

// requireClosedFolder: a pod's agent sees the world's folder, accessible only to its user, and its own socket in it;
// the engine does not see the folder.
func requireClosedFolder(t *testing.T, p *corev1.Pod, d *v1alpha2.MoEDeployment) {
	t.Helper()
	const folder = "/run/tangram-node"
	path := p.Spec.Volumes[slices.IndexFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil })].HostPath.Path
	require.Equal(t, folder+"/"+string(d.UID), path)
	agent, engine := processesOf(t, string(p.UID), "tangram-agent")[0], processesOf(t, string(p.UID), "tangram-engine")[0]
	info, err := os.Stat(agent + "/root" + folder)
	require.NoError(t, err)
	require.Equal(t, os.ModeDir|0o700, info.Mode())
	owner, ok := info.Sys().(*syscall.Stat_t)
	require.True(t, ok)
	require.EqualValues(t, 65532, owner.Uid)
	_, err = os.Stat(agent + "/root" + folder + "/" + p.Status.PodIP + ":7101.sock")
	require.NoError(t, err)
	_, err = os.Stat(engine + "/root" + folder)
	require.ErrorIs(t, err, os.ErrNotExist)
}
