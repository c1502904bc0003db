package controller

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"tangram.dev/operator/internal/world"
	"tangram.dev/operator/pkg/kernels"
	tangramv1 "tangram.dev/proto/tangram/v1"

	api "tangram.dev/api/v1alpha2"
)

// Ready counts the pods of the layout and all other ready pods; Standby counts only those with the standby label.
func TestStatusCountsStandbyPods(t *testing.T) {
	const serving, standing, starting, leaving, spare = "00000000-0000-4000-8000-00000000000a", "00000000-0000-4000-8000-00000000000b", "00000000-0000-4000-8000-00000000000c",
		"00000000-0000-4000-8000-00000000000d", "00000000-0000-4000-8000-00000000000e"
	pod := func(uid string, standby bool) corev1.Pod {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Labels: map[string]string{}}}
		if standby {
			p.Labels[api.StandbyLabel] = "true"
		}
		return p
	}
	status := func(uid string, attached bool) *tangramv1.StatusResponse {
		s := &tangramv1.StatusResponse{}
		for _, n := range []string{"/0/1", "/1/1"} {
			s.Ranks = append(s.Ranks, &tangramv1.RankStatus{Member: &tangramv1.Member{Id: uid + n}, Engine: &tangramv1.EngineStatus{Attached: attached}})
		}
		return s
	}
	gone := pod(leaving, true)
	gone.DeletionTimestamp = &metav1.Time{}
	d := &api.MoEDeployment{Spec: api.MoEDeploymentSpec{RanksPerPod: 2, Replicas: 1, StandbyReplicas: 1}}
	s := &scene{pods: []corev1.Pod{pod(serving, false), pod(standing, true), pod(starting, true), gone, pod(spare, false)}, seen: world.Snapshot{
		Layout: &tangramv1.Layout{Members: []*tangramv1.Member{{Id: serving + "/0/1"}, {Id: serving + "/1/1"}}},
		Statuses: map[string]*tangramv1.StatusResponse{serving: status(serving, true), standing: status(standing, true), starting: status(starting, false), leaving: status(leaving, true),
			spare: status(spare, true)}}}
	got := podsNow(d, s, kernels.Expert(2))
	require.Equal(t, 6, got.Ready, "one that serves, one that stands by, one that is left over")
	require.Equal(t, 2, got.Standby)
}
