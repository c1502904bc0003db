package controller

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	api "tangram.dev/api/v1alpha2"
)

// fabric says whether the world's agents and its engines are configured for plain text.
func (b *bed) fabric(d *api.MoEDeployment) (agents bool, engines []bool) {
	b.t.Helper()
	agents, _ = b.agentConfig(d)["insecure_fabric"].(bool)
	for _, c := range b.pod(podName(d, 0)).Spec.Containers {
		if c.Name != containerAgent {
			engines = append(engines, slices.Contains(c.Args, "--insecure-fabric"))
		}
	}
	return agents, engines
}

// One field of the spec turns off encryption for agents and engines, and a condition and an event report it.
func TestEncryption_WhenDisabledInSpec(t *testing.T) {
	b := newBed(t)
	closed, open := b.deployment("w", 1), b.deployment("open", 1)
	open.Spec.RanksPerPod, open.Spec.Network.Encryption = 2, api.EncryptionNone
	require.NoError(t, b.c.Create(t.Context(), closed))
	require.NoError(t, b.c.Create(t.Context(), open))
	closed, open = b.ready("w"), b.ready("open")

	agents, engines := b.fabric(open)
	require.True(t, agents)
	require.Equal(t, []bool{true, true}, engines)
	require.True(t, has(open, api.ConditionPlaintextNetwork, metav1.ConditionTrue, api.ReasonUnencrypted))
	b.told(api.ConditionPlaintextNetwork, "plain text")

	agents, engines = b.fabric(closed)
	require.False(t, agents)
	require.Equal(t, []bool{false}, engines)
	require.Nil(t, apimeta.FindStatusCondition(closed.Status.Conditions, api.ConditionPlaintextNetwork))
}

// The Secrets that each container of the world's pods can read, and the paths that it can write.
func TestPodsHaveLeastPrivilege(t *testing.T) {
	r := &Reconciler{}
	d := &api.MoEDeployment{ObjectMeta: metav1.ObjectMeta{Name: "w", Namespace: "ns"}, Spec: api.MoEDeploymentSpec{RanksPerPod: 2,
		Model: api.Model{Source: api.ModelSource{PersistentVolumeClaim: &api.ClaimSource{ClaimName: "c"}}}}}
	rank := must(r.rankPod(d, 0, "config")).Spec
	gateway := must(r.gatewayDeployment(d, "10.0.0.1")).Spec.Template.Spec
	d.Spec.Gateway.Text = &api.Text{}
	texts := must(r.gatewayDeployment(d, "10.0.0.1")).Spec.Template.Spec
	require.Len(t, texts.Containers, 2)
	for _, pod := range []corev1.PodSpec{rank, gateway, texts} {
		require.False(t, *pod.AutomountServiceAccountToken, "no rights in the cluster")
		require.False(t, pod.HostNetwork || pod.HostPID || pod.HostIPC)
		require.True(t, *pod.SecurityContext.RunAsNonRoot)
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			require.False(t, *c.SecurityContext.AllowPrivilegeEscalation, c.Name)
			require.True(t, *c.SecurityContext.ReadOnlyRootFilesystem, c.Name)
			require.Equal(t, []corev1.Capability{"ALL"}, c.SecurityContext.Capabilities.Drop, c.Name)
		}
		for _, v := range pod.Volumes {
			require.Nil(t, v.HostPath, v.Name)
			require.Nil(t, v.Projected, v.Name)
		}
	}
	volumes := map[string]corev1.Volume{}
	for _, v := range rank.Volumes {
		volumes[v.Name] = v
	}
	require.True(t, volumes["models"].PersistentVolumeClaim.ReadOnly)
	keys := func(volume string) (out []string) {
		for _, item := range volumes[volume].Secret.Items {
			out = append(out, item.Key)
		}
		return out
	}
	require.Equal(t, []string{keyCA, keyAgentCert, keyAgentKey}, keys("tls-agent"))
	require.Equal(t, []string{keyCA, keyEngineCert, keyEngineKey}, keys("tls-engine"))
	for _, c := range rank.Containers {
		var writes, reads []string
		for _, m := range c.VolumeMounts {
			if m.ReadOnly {
				reads = append(reads, m.Name)
			} else {
				writes = append(writes, m.Name)
			}
		}
		if c.Name == containerAgent {
			require.ElementsMatch(t, []string{"run", "agent", "tmp"}, writes)
			require.ElementsMatch(t, []string{"config", "tls-agent", "models"}, reads)
		} else {
			require.ElementsMatch(t, []string{"run", "tmp"}, writes, c.Name)
			require.ElementsMatch(t, []string{"tls-engine"}, reads, c.Name)
		}
	}
}

// A pod or a Service may have only IPv6 addresses.
func TestIPv6OnlyAddresses(t *testing.T) {
	r := &Reconciler{}
	d := &api.MoEDeployment{ObjectMeta: metav1.ObjectMeta{Name: "w", Namespace: "ns"}, Spec: api.MoEDeploymentSpec{RanksPerPod: 2,
		Model: api.Model{Source: api.ModelSource{PersistentVolumeClaim: &api.ClaimSource{ClaimName: "c"}}}}}
	config, err := agentConfig(d)
	require.NoError(t, err)
	file := map[string]any{}
	require.NoError(t, yaml.Unmarshal([]byte(config.Data["agent.yaml"]), &file))
	require.Equal(t, "[::]:7100", file["listen"])
	require.Equal(t, "[::]:7101", file["data_listen"])
	require.Equal(t, "[::]:7102", file["metrics_listen"])
	pod := must(r.rankPod(d, 0, "config"))
	require.Subset(t, pod.Spec.Containers[2].Args, []string{"--mesh-listen=[::]:7201", "--serve-listen=[::]:7301", "--advertise=$(POD_IP)"})
	require.NotContains(t, strings.Join(pod.Spec.Containers[1].Args, " ")+config.Data["agent.yaml"], "0.0.0.0")
	gateway := must(r.gatewayDeployment(d, "fd00::1")).Spec.Template.Spec.Containers[0]
	require.Contains(t, gateway.Args, "--discover=[fd00::1]:7300")

	pod.UID = "u"
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "fd00::7", PodIPs: []corev1.PodIP{{IP: "fd00::7"}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: containerAgent, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}
	at := endpoints([]corev1.Pod{*pod})
	require.Len(t, at, 1)
	require.Equal(t, "[fd00::7]:7100", at[0].Address)
}

// The image of spec.engine runs only in engine containers, with the settings of every engine and minutes to start.
func TestEngineContainers_WhenSpecHasImage(t *testing.T) {
	r := &Reconciler{Images: Images{Agent: "agent:1", Engine: "engine:1"}}
	d := &api.MoEDeployment{ObjectMeta: metav1.ObjectMeta{Name: "w", Namespace: "ns"}, Spec: api.MoEDeploymentSpec{RanksPerPod: 2,
		Engine: api.Engine{Image: "vllm:2", Args: []string{"--max-batch-tokens", "64"}},
		Model:  api.Model{Source: api.ModelSource{PersistentVolumeClaim: &api.ClaimSource{ClaimName: "c"}}}}}
	pod := must(r.rankPod(d, 0, "config")).Spec
	require.Equal(t, "agent:1", pod.InitContainers[0].Image)
	require.Equal(t, "agent:1", pod.Containers[0].Image)
	require.Nil(t, pod.Containers[0].StartupProbe)
	for device, c := range pod.Containers[1:] {
		require.Equal(t, "vllm:2", c.Image)
		require.Equal(t, []string{"--max-batch-tokens", "64"}, c.Args[len(c.Args)-2:])
		require.Contains(t, c.Args, "--agent-socket="+dirRun+"/agent.sock")
		require.Empty(t, c.Command, "the image's own entry point")
		p := c.StartupProbe
		require.EqualValues(t, portServe+device, p.TCPSocket.Port.IntVal)
		require.Equal(t, longestStart, time.Duration(p.PeriodSeconds*p.FailureThreshold)*time.Second)
	}
}
