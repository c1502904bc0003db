package controller

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tangram.dev/operator/internal/world"
	"tangram.dev/operator/pkg/fleet"
	tangramv1 "tangram.dev/proto/tangram/v1"

	api "tangram.dev/api/v1alpha2"
)

// An old pod is deleted after another pod took its name: the new one keeps its Secret.
func TestDeletePodKeepsSecretOfNewerPod(t *testing.T) {
	b := newBed(t)
	d := b.serve("w", 1)
	s := b.secret("w-0-tls")
	require.NoError(t, b.r.deletePod(t.Context(), d, fleet.Deletion{Name: "w-0", UID: uuid.NewString(), Why: "an older pod of this name"}))
	require.Equal(t, s.UID, b.secret("w-0-tls").UID)
	require.Zero(t, b.count(api.EventPodReleased))
}

// A pod is ready if all of its ranks are in the layout.
func TestReadyReplicas_WhenRankOutsideLayout(t *testing.T) {
	pod := func(uid string) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "w-" + uid, UID: types.UID(uid)}}
	}
	l := &tangramv1.Layout{Epoch: 3, Members: []*tangramv1.Member{{Id: "a/0/1"}, {Id: "a/1/1"}, {Id: "b/0/1"}}}
	d := &api.MoEDeployment{Spec: api.MoEDeploymentSpec{RanksPerPod: 2}}
	s := &scene{pods: []corev1.Pod{pod("a"), pod("b")}, seen: world.Snapshot{Layout: l, Epoch: 3}}
	fillLayout(d, s)
	require.EqualValues(t, 1, d.Status.ReadyReplicas)
	require.Zero(t, d.Status.ReadyStandbyReplicas)
}

// Standby pods count among those that cannot start.
func TestPodProblemsCountStandbyPods(t *testing.T) {
	d := &api.MoEDeployment{Spec: api.MoEDeploymentSpec{Replicas: 4, StandbyReplicas: 1}}
	var problems []problem
	for i := range 5 {
		problems = append(problems, problem{fmt.Sprintf("w-%d", i), api.ReasonPodsUnschedulable, "no node"})
	}
	require.Equal(t, "5 of 5 pods cannot start; w-0: no node.", degradedOf(d, &scene{problems: problems}).message)
}

// Claims of the spec are kept in addition to the GPU's, and all the agent's containers on GPUs use one image.
func TestGPUPodKeepsClaimsOfSpec(t *testing.T) {
	b := newBed(t)
	d := b.deployment("w", 1)
	d.Spec.Accelerator = api.Accelerator{Type: api.AcceleratorNVIDIA, DeviceClassName: "gpu.nvidia.com"}
	d.Spec.Network.NodeMemorySharing, d.Spec.RanksPerPod = api.NodeMemorySharingEnabled, 1
	d.Spec.Template.Spec.Containers = []api.ContainerTemplate{{Name: containerEngine, Resources: api.Resources{Claims: []corev1.ResourceClaim{{Name: "rdma"}}}}}
	pod := must(b.r.rankPod(d, 0, "config"))
	require.Equal(t, []corev1.ResourceClaim{{Name: "rdma"}, {Name: gpuRequest}}, pod.Spec.Containers[1].Resources.Claims)
	require.Equal(t, []corev1.ResourceClaim{{Name: "rdma"}}, d.Spec.Template.Spec.Containers[0].Resources.Claims, "the spec is not changed")
	for _, c := range pod.Spec.InitContainers {
		require.Equal(t, "agent-gpu:test", c.Image, c.Name)
	}
}

// The members in the status of the largest world fit into one object, even with the longest names.
func TestStatusOfLargestWorldFitsInObject(t *testing.T) {
	b := newBed(t)
	b.stop() // no other writer
	name := "w" + strings.Repeat("x", 39)
	d := b.deployment(name, 2)
	require.NoError(t, b.c.Create(t.Context(), d))
	d.Status.Selector, d.Status.State = "a", "b"
	for i := range api.MaxMembers {
		d.Status.Members = append(d.Status.Members, api.Member{Rank: int32(i), ID: uuid.NewString() + "/0/1", Pod: fmt.Sprintf("%s-%d", name, i),
			Node: fmt.Sprintf("ip-10-0-%04d.some-long-region-1.compute.internal.example.com", i)})
	}
	require.NoError(t, b.c.Status().Update(t.Context(), d, client.FieldOwner("first")))
	for i := range d.Status.Members { // as after a repair
		d.Status.Members[i].Rank = int32(api.MaxMembers - 1 - i)
	}
	require.NoError(t, b.c.Status().Update(t.Context(), d, client.FieldOwner("second")))
}
