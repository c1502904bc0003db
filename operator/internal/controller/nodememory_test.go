package controller

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	api "tangram.dev/api/v1alpha2"
)

// label labels the test's namespace; nil removes a label.
func (b *bed) label(labels map[string]any) {
	b.t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	require.NoError(b.t, err)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: b.namespace}}
	require.NoError(b.t, b.c.Patch(b.t.Context(), namespace, client.RawPatch("application/merge-patch+json", patch)))
}

const podSecurity = "pod-security.kubernetes.io/enforce"

// The agents' file names only a non-default slab format, so that older agents can read it too.
func TestAgentConfigOmitsDefaultSlabFormat(t *testing.T) {
	d := &api.MoEDeployment{ObjectMeta: metav1.ObjectMeta{Name: "w", Namespace: "ns"}, Spec: api.MoEDeploymentSpec{
		Model: api.Model{Source: api.ModelSource{PersistentVolumeClaim: &api.ClaimSource{ClaimName: "c"}}}}}
	for format, want := range map[api.SlabFormat]any{"": nil, api.GranuleMajor: nil, api.RowMajor: "row-major"} {
		d.Spec.Tuning.SlabFormat = format
		config, err := agentConfig(d)
		require.NoError(t, err)
		file := map[string]any{}
		require.NoError(t, yaml.Unmarshal([]byte(config.Data["agent.yaml"]), &file))
		require.Equal(t, want, file["slab_format"], format)
	}
}

// Only the agents of this world get the node's folder, and the init container has only the root rights that it needs.
func TestNodeMemoryIsMountedOnlyByAgents(t *testing.T) {
	r := &Reconciler{NodeFolder: DefaultNodeFolder}
	d := &api.MoEDeployment{ObjectMeta: metav1.ObjectMeta{Name: "w", Namespace: "ns", UID: "0a1b"}, Spec: api.MoEDeploymentSpec{RanksPerPod: 2,
		Model: api.Model{Source: api.ModelSource{PersistentVolumeClaim: &api.ClaimSource{ClaimName: "c"}}}}}
	without, plain := must(r.rankPod(d, 0, "config")).Spec, must(r.gatewayDeployment(d, "10.0.0.1"))
	folder := func() any {
		config, err := agentConfig(d)
		require.NoError(t, err)
		file := map[string]any{}
		require.NoError(t, yaml.Unmarshal([]byte(config.Data["agent.yaml"]), &file))
		return file["node_socket_dir"]
	}
	require.Nil(t, folder())
	d.Spec.Network.NodeMemorySharing = api.NodeMemorySharingEnabled
	with := must(r.rankPod(d, 0, "config")).Spec
	require.Equal(t, plain, must(r.gatewayDeployment(d, "10.0.0.1")), "a gateway has nothing to do with it")

	require.Equal(t, without.Volumes, with.Volumes[:len(without.Volumes)])
	require.Len(t, with.Volumes, len(without.Volumes)+1)
	volume := with.Volumes[len(without.Volumes)]
	require.Equal(t, "/run/tangram-node/0a1b", volume.HostPath.Path)
	require.Equal(t, corev1.HostPathDirectoryOrCreate, *volume.HostPath.Type)
	require.Equal(t, dirNode, folder())
	require.LessOrEqual(t, len(dirNode), 50, "what an agent takes")

	mount := corev1.VolumeMount{Name: volume.Name, MountPath: dirNode}
	for i := range with.Containers {
		c := &with.Containers[i]
		if c.Name == containerAgent {
			require.Contains(t, c.VolumeMounts, mount)
			c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volume.Name })
		}
	}
	require.Equal(t, without.Containers, with.Containers, "and nothing else is new")
	require.Equal(t, without.InitContainers, with.InitContainers[:1])
	require.Len(t, with.InitContainers, 2)
	giver := with.InitContainers[1]
	require.Equal(t, []string{"/bin/tangram-hook", "own", dirNode, "65532"}, giver.Command)
	require.Equal(t, []corev1.VolumeMount{mount}, giver.VolumeMounts)
	require.Equal(t, &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"CHOWN"}}, giver.SecurityContext.Capabilities)
	require.False(t, *giver.SecurityContext.AllowPrivilegeEscalation)
	require.True(t, *giver.SecurityContext.ReadOnlyRootFilesystem)
	require.Zero(t, *giver.SecurityContext.RunAsUser)
	with.InitContainers, with.Volumes = without.InitContainers, without.Volumes
	require.Equal(t, without, with)

	other := d.DeepCopy()
	other.UID = "0a1c"
	require.NotEqual(t, volume.HostPath.Path, must(r.rankPod(other, 0, "config")).Spec.Volumes[len(without.Volumes)].HostPath.Path, "another world of the same name")
}

// Without the namespace's label no object of the world is created. With it, Pod Security still applies.
func TestNodeMemoryRequiresNamespaceLabel(t *testing.T) {
	b := newBed(t)
	d := b.deployment("w", 2)
	d.Spec.Network.NodeMemorySharing = api.NodeMemorySharingEnabled
	require.NoError(t, b.c.Create(t.Context(), d))
	refused := func(value string) {
		d := b.degraded("w", api.ReasonSharingNotAllowed, "spec.network.nodeMemorySharing", "namespace "+b.namespace,
			`its label serving.tangram.dev/node-memory-sharing is "`+value+`" and must be "allowed"`)
		require.NotContains(t, message(d, api.ConditionDegraded), "\n")
		require.Equal(t, api.ReasonSharingNotAllowed, d.Status.State)
		require.True(t, has(d, api.ConditionReady, metav1.ConditionFalse, api.ReasonNoLayout))
		require.Equal(t, status.FailedStatus, kstatus(t, d).Status)
		for _, list := range []client.ObjectList{&corev1.PodList{}, &corev1.SecretList{}, &corev1.ConfigMapList{}, &corev1.ServiceList{}, &appsv1.DeploymentList{}} {
			require.NoError(t, b.c.List(t.Context(), list, client.InNamespace(b.namespace), client.HasLabels{api.WorldLabel}))
			require.Zero(t, apimeta.LenList(list), "nothing is half there: %v", list)
		}
	}
	refused("")
	b.told(api.ReasonSharingNotAllowed, "no pod is created")
	other := b.deployment("v", 1)
	other.Spec.Network.NodeMemorySharing = api.NodeMemorySharingEnabled
	require.NoError(t, b.c.Create(t.Context(), other))
	b.degraded("v", api.ReasonSharingNotAllowed)
	require.NoError(t, b.c.Delete(t.Context(), other))
	require.Eventually(t, func() bool { return b.gone(&api.MoEDeployment{}, "v") }, wait, tick, "a world that was never begun goes")
	b.label(map[string]any{api.NodeMemorySharingLabel: "true"})
	refused("true")

	b.label(map[string]any{api.NodeMemorySharingLabel: api.NodeMemorySharingAllowed})
	d = b.degraded("w", api.ReasonObjectRejected, "2 of 2 pods cannot start", "w-0", "with a hostPath volume for spec.network.nodeMemorySharing", `violates PodSecurity "restricted`)
	require.NotContains(t, message(d, api.ConditionDegraded), "\n")
	b.label(map[string]any{podSecurity: "privileged"})
	b.ready("w")
	pod := b.pod("w-0").Spec
	require.True(t, slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool {
		return v.HostPath != nil && v.HostPath.Path == DefaultNodeFolder+"/"+string(d.UID)
	}))
}

// Without the label a serving world continues: it is repaired and may shrink, but gets no pod until the label is back.
func TestNodeMemory_WhenNamespaceLabelRemoved(t *testing.T) {
	b := newBed(t)
	b.mayHarm = true
	b.label(map[string]any{podSecurity: "privileged", api.NodeMemorySharingLabel: api.NodeMemorySharingAllowed})
	d := b.deployment("w", 4)
	d.Spec.Network.NodeMemorySharing = api.NodeMemorySharingEnabled
	require.NoError(t, b.c.Create(t.Context(), d))
	before := b.ready("w")
	uids := b.uids()

	b.label(map[string]any{api.NodeMemorySharingLabel: nil})
	d = b.degraded("w", api.ReasonSharingNotAllowed, "Running pods continue to serve.")
	require.True(t, has(d, api.ConditionReady, metav1.ConditionFalse, api.ReasonSharingNotAllowed))
	require.True(t, has(d, api.ConditionAvailable, metav1.ConditionTrue, api.ReasonServing))
	require.Equal(t, before.Status.LayoutHash, d.Status.LayoutHash)
	require.Equal(t, uids, b.uids())

	b.die("w-1")
	b.until("w", "repaired, and no more", func(d *api.MoEDeployment) bool {
		return d.Status.Ranks == 3 && has(d, api.ConditionDegraded, metav1.ConditionTrue, api.ReasonSharingNotAllowed) &&
			has(d, api.ConditionAvailable, metav1.ConditionTrue, api.ReasonServing) && has(d, api.ConditionProgressing, metav1.ConditionTrue, api.ReasonWaitingForPods)
	})
	b.scale(2)
	d = b.until("w", "two serve, as wanted", func(d *api.MoEDeployment) bool {
		return d.Status.Ranks == 2 && has(d, api.ConditionProgressing, metav1.ConditionFalse, api.ReasonReconciled) && d.Status.ObservedGeneration == d.Generation
	})
	require.True(t, has(d, api.ConditionDegraded, metav1.ConditionTrue, api.ReasonSharingNotAllowed))
	for name, uid := range b.uids() {
		require.Equal(t, uids[name], uid, "no pod is new")
	}

	b.label(map[string]any{api.NodeMemorySharingLabel: api.NodeMemorySharingAllowed})
	b.scale(3)
	require.EqualValues(t, 3, b.ready("w").Status.Ranks)
}
