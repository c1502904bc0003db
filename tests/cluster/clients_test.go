package cluster

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"tangram.dev/api/v1alpha2"
	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/harness/cluster"
	"tangram.dev/tests/internal/clients"
)

// vllmImage is made by `make vllm-image`. Tests of vLLM run only if VLLM=1 says that it exists, because it takes
// minutes.
const vllmImage = "build/images/vllm.tar"

func withVLLM() bool { return os.Getenv("VLLM") == "1" }

// Popular clients chat, stream, stop and call a tool with two vLLM ranks, which become three, change their mode, lose
// one, and become two.
func TestVllmClients(t *testing.T) {
	if !withVLLM() {
		t.Skip("needs `make vllm-image` and VLLM=1")
	}
	checkpoint, _, err := harness.Scripted(t.Context(), root, "qwen3", clients.Scripts...)
	require.NoError(t, err)
	k := namespace(t, "")
	serve(t, k, 2, func(s *v1alpha2.MoEDeploymentSpec) {
		s.Model.Source.PersistentVolumeClaim.Path = v1alpha2.CheckpointPath(filepath.Base(checkpoint))
		s.Engine = v1alpha2.Engine{Name: v1alpha2.EngineVLLM, Args: []string{"--max-batch-tokens", "256", "--max-model-len", "1024"}}
		s.Template.Spec.Containers = []v1alpha2.ContainerTemplate{{Name: "engine",
			Resources: v1alpha2.Resources{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}}}}
		s.Gateway.Text = &v1alpha2.Text{ToolCallParser: clients.ToolParser}
		s.Memory.Weights = resource.MustParse("1Gi")
	})
	url, err := k.AwaitGateway(t.Context(), name)
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ran := make(chan error, 1)
	rounds := 0
	go func() { // each client at least once, and again until all events have happened
		for ; rounds == 0 || ctx.Err() == nil; rounds++ {
			for _, client := range clients.All {
				if err := clients.Run(t.Context(), root, client, url, name); err != nil {
					ran <- err
					return
				}
			}
		}
		ran <- nil
	}()
	for _, ask := range []func() error{
		func() error { return k.Scale(t.Context(), object, 3) },
		func() error {
			return k.Patch(t.Context(), object, `{"spec":{"parallelism":{"mode":"TensorParallel"}}}`)
		},
		func() error {
			return k.Patch(t.Context(), object, `{"spec":{"parallelism":{"mode":"ExpertParallel"}}}`)
		},
	} {
		require.NoError(t, ask())
		require.NoError(t, k.Wait(t.Context(), object, v1alpha2.ConditionReady, limit))
	}
	_, err = cluster.KillContainers(string(ranks(t, k)[1].UID))
	require.NoError(t, err)
	repaired(t, k, 3)
	require.NoError(t, k.Scale(t.Context(), object, 2))
	require.NoError(t, k.Wait(t.Context(), object, v1alpha2.ConditionReady, limit))
	cancel()
	require.NoError(t, <-ran)
	t.Logf("the clients ran %d times", rounds)
}
