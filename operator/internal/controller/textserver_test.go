package controller

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "tangram.dev/api/v1alpha2"
)

func withTextOf(t *api.Text) *api.MoEDeployment {
	return &api.MoEDeployment{ObjectMeta: metav1.ObjectMeta{Name: "w", Namespace: "ns"}, Spec: api.MoEDeploymentSpec{
		Model:   api.Model{Name: "org/model", Source: api.ModelSource{PersistentVolumeClaim: &api.ClaimSource{ClaimName: "c", Path: "qwen3"}}},
		Engine:  api.Engine{Image: "vllm:1"},
		Gateway: api.Gateway{Text: t}}}
}

// The text server has all it needs to convert text to tokens, and of the world only two sockets.
func TestGateway_WhenTextIsSet(t *testing.T) {
	r := &Reconciler{Images: Images{Gateway: "gateway:1"}}
	d := withTextOf(&api.Text{Tokenizer: api.TokenizerCheckpoint, ToolCallParser: "hermes", ReasoningParser: "qwen3", Args: []string{"--a=b"},
		ChatTemplate: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "chat"}, Key: "k"}})
	pod := must(r.gatewayDeployment(d, "10.0.0.1")).Spec.Template.Spec
	gateway, text := pod.Containers[0], pod.Containers[1]
	sockets := []string{"--tokens-socket=/run/tangram/tokens.sock", "--text-socket=/run/tangram/text.sock"}
	require.Subset(t, gateway.Args, sockets)
	require.Equal(t, "vllm:1", text.Image)
	require.Equal(t, []string{"/bin/tangram-front"}, text.Command)
	require.Equal(t, append(sockets, "--model=/models/qwen3", "--served-model-name=org/model", "--enable-auto-tool-choice", "--tool-call-parser=hermes",
		"--reasoning-parser=qwen3", "--chat-template=/etc/tangram/chat/template.jinja", "--a=b"), text.Args)
	require.Empty(t, text.Ports)
	require.Empty(t, text.Env)
	mounts := map[string]bool{} // by volume: read-only
	for _, m := range text.VolumeMounts {
		mounts[m.Name] = m.ReadOnly
	}
	require.Equal(t, map[string]bool{"sockets": false, "tmp": false, "models": true, "chat": true}, mounts, "no key of the world")
	for _, v := range pod.Volumes {
		if v.Name == "models" {
			require.True(t, v.PersistentVolumeClaim.ReadOnly)
		}
	}
	require.Equal(t, "/textz", text.StartupProbe.HTTPGet.Path)
	require.Equal(t, "/textz", text.LivenessProbe.HTTPGet.Path)
	require.EqualValues(t, 1, *text.LivenessProbe.TerminationGracePeriodSeconds, "of a server that hangs")
	require.Nil(t, text.ReadinessProbe, "a text server that starts again takes no request of token ids from its gateway")
	require.Equal(t, resource.MustParse("2Gi"), text.Resources.Limits[corev1.ResourceMemory])
	require.Equal(t, resource.MustParse("200m"), text.Resources.Requests[corev1.ResourceCPU])

	d.Spec.Gateway.Text = &api.Text{Tokenizer: api.TokenizerCheckpoint, Image: "text:2"}
	asked := api.Resources{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("4Gi")}}
	d.Spec.Gateway.Template.Spec.Containers = []api.ContainerTemplate{{Name: containerText, Resources: asked}}
	text = must(r.gatewayDeployment(d, "10.0.0.1")).Spec.Template.Spec.Containers[1]
	require.Equal(t, "text:2", text.Image)
	require.Equal(t, asked.Requirements(), text.Resources)
}

func TestGateway_WhenTokenizerIsBytes(t *testing.T) {
	r := &Reconciler{}
	for _, c := range []struct {
		text *api.Text
		flag bool
	}{{nil, false}, {&api.Text{Tokenizer: api.TokenizerBytes}, true}} {
		pod := must(r.gatewayDeployment(withTextOf(c.text), "10.0.0.1")).Spec.Template.Spec
		require.Len(t, pod.Containers, 1)
		require.Len(t, pod.Volumes, 1)
		if c.flag {
			require.Contains(t, pod.Containers[0].Args, "--tokenizer=bytes")
		} else {
			require.NotContains(t, pod.Containers[0].Args, "--tokenizer=bytes")
		}
	}
}
