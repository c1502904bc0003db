package controller

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "tangram.dev/api/v1alpha2"
)

// The user's settings reach the pods, in addition to those of the operator.
func TestTemplate_WhenMerged(t *testing.T) {
	b := newBed(t)
	d := b.deployment("w", 1)
	d.Spec.RanksPerPod = 2
	few := func(cpu string) api.Resources {
		list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("1Gi")}
		return api.Resources{Requests: list, Limits: list}
	}
	affinity := corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{
		{Weight: 1, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpExists}}}}}}}
	spec := api.PodTemplateSpec{
		NodeSelector: map[string]string{"pool": "moe"}, Affinity: &affinity, Tolerations: []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}},
		TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: "rack", WhenUnsatisfiable: corev1.ScheduleAnyway}},
		SchedulerName:             "kueue", ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}, DNSPolicy: corev1.DNSDefault,
		Volumes: []api.VolumeTemplate{{Name: "extra", EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	}
	d.Spec.Template = api.PodTemplate{Metadata: api.PodMetadata{Labels: map[string]string{"queue": "a"}, Annotations: map[string]string{"network": "rdma"}},
		Spec: *spec.DeepCopy()}
	d.Spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](77)
	d.Spec.Template.Spec.InitContainers = []api.InitContainerTemplate{{Name: "hook", ImagePullPolicy: corev1.PullAlways, Resources: few("10m")}}
	d.Spec.Template.Spec.Containers = []api.ContainerTemplate{
		{Name: containerAgent, Resources: api.Resources{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}}, Env: []api.EnvVar{{Name: "NCCL_DEBUG", Value: "INFO"}}},
		{Name: containerEngine, Resources: few("1"), ImagePullPolicy: corev1.PullAlways, VolumeMounts: []api.VolumeMount{{Name: "extra", MountPath: "/mnt/extra"}}},
	}
	d.Spec.Gateway.Template = api.PodTemplate{Metadata: api.PodMetadata{Labels: map[string]string{"queue": "b"}}, Spec: *spec.DeepCopy()}
	d.Spec.Gateway.Template.Spec.Containers = []api.ContainerTemplate{{Name: "gateway", Resources: few("1"), Env: []api.EnvVar{{Name: "GOGC", Value: "50"}}},
		{Name: containerText, Resources: few("1")}}
	require.NoError(t, b.c.Create(t.Context(), d))
	d = b.ready("w")

	common := func(labels map[string]string, pod corev1.PodSpec) {
		require.Equal(t, "w", labels[api.WorldLabel])
		require.Equal(t, spec.NodeSelector, pod.NodeSelector)
		require.Equal(t, spec.Affinity, pod.Affinity)
		require.Contains(t, pod.Tolerations, spec.Tolerations[0])
		require.Equal(t, spec.SchedulerName, pod.SchedulerName)
		require.Equal(t, spec.ImagePullSecrets, pod.ImagePullSecrets)
		require.Equal(t, spec.DNSPolicy, pod.DNSPolicy)
		keys := map[string]bool{}
		for _, c := range pod.TopologySpreadConstraints {
			keys[c.TopologyKey] = true
		}
		require.True(t, keys["rack"] && keys[corev1.LabelHostname], "%v", keys)
	}
	pod := b.pod("w-0")
	common(pod.Labels, pod.Spec)
	require.Equal(t, []string{"a", "rdma"}, []string{pod.Labels["queue"], pod.Annotations["network"]})
	require.EqualValues(t, 77, *pod.Spec.TerminationGracePeriodSeconds)
	require.Len(t, pod.Spec.Containers, 3)
	require.Equal(t, "10m", pod.Spec.InitContainers[0].Resources.Limits.Cpu().String())
	bare := b.deployment("v", 1)
	bare.Spec.RanksPerPod = 2
	plain := must(b.r.rankPod(bare, 0, "config")).Spec
	agent := pod.Spec.Containers[0]
	require.Equal(t, "2", agent.Resources.Limits.Cpu().String())
	require.EqualValues(t, 2*80<<20+256<<20, agent.Resources.Limits.Memory().Value(), "two ranks, and the agent's own")
	require.Contains(t, agent.Env, corev1.EnvVar{Name: "NCCL_DEBUG", Value: "INFO"})
	require.Equal(t, plain.Containers[0].SecurityContext, agent.SecurityContext)
	require.Equal(t, corev1.PullAlways, pod.Spec.InitContainers[0].ImagePullPolicy)
	for _, engine := range pod.Spec.Containers[1:] {
		require.Equal(t, "1", engine.Resources.Limits.Cpu().String())
		require.Equal(t, corev1.PullAlways, engine.ImagePullPolicy)
		require.Contains(t, engine.VolumeMounts, corev1.VolumeMount{Name: "extra", MountPath: "/mnt/extra"})
		require.Subset(t, engine.VolumeMounts, plain.Containers[1].VolumeMounts)
	}
	gateway := &appsv1.Deployment{}
	require.NoError(t, b.c.Get(t.Context(), client.ObjectKey{Namespace: b.namespace, Name: gatewayName(d)}, gateway))
	common(gateway.Spec.Template.Labels, gateway.Spec.Template.Spec)
	require.Equal(t, "b", gateway.Spec.Template.Labels["queue"])
	require.Len(t, gateway.Spec.Template.Spec.Containers, 1, "a template makes no text server")
	require.Contains(t, gateway.Spec.Template.Spec.Containers[0].Env, corev1.EnvVar{Name: "GOGC", Value: "50"})
}

// A template that changes a field of the operator is rejected, with the reason and the remedy.
func TestTemplate_WhenFieldsAreProtected(t *testing.T) {
	b := newBed(t)
	container := func(c api.ContainerTemplate) func(*api.PodTemplate) {
		return func(p *api.PodTemplate) { p.Spec.Containers = []api.ContainerTemplate{c} }
	}
	volume := func(v api.VolumeTemplate) func(*api.PodTemplate) {
		return func(p *api.PodTemplate) { p.Spec.Volumes = []api.VolumeTemplate{v} }
	}
	memory := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}
	ranks := map[string]func(*api.PodTemplate){
		"Labels serving.tangram.dev/* and":  func(p *api.PodTemplate) { p.Metadata.Labels = map[string]string{api.WorldLabel: "x"} },
		"Annotations serving.tangram.dev/*": func(p *api.PodTemplate) { p.Metadata.Annotations = map[string]string{api.AbortAnnotation: "x"} },
		"The volumes run, agent, tmp":       volume(api.VolumeTemplate{Name: "models", EmptyDir: &corev1.EmptyDirVolumeSource{}}),
		"A volume has exactly one source":   volume(api.VolumeTemplate{Name: "x"}),
		"The resource claim gpu belongs": func(p *api.PodTemplate) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("x")}}
		},
		"The init containers of a pod are hook": func(p *api.PodTemplate) { p.Spec.InitContainers = []api.InitContainerTemplate{{Name: "mine"}} },
		"Labels serving.tangram.dev/* and app.": func(p *api.PodTemplate) { p.Metadata.Labels = map[string]string{"app.kubernetes.io/name": "x"} },
		"The containers of a pod of ranks are":  container(api.ContainerTemplate{Name: "sidecar"}),
		"The memory of the agent follows":       container(api.ContainerTemplate{Name: containerAgent, Resources: api.Resources{Limits: memory}}),
		"The operator sets POD_IP, POD_NAME":    container(api.ContainerTemplate{Name: containerAgent, Env: []api.EnvVar{{Name: "POD_UID", Value: "x"}}}),
		"Mount volumes below /mnt, /opt, /srv":  container(api.ContainerTemplate{Name: containerEngine, VolumeMounts: []api.VolumeMount{{Name: "x", MountPath: "/mnt/../bin"}}}),
		"Other paths belong to the operator":    container(api.ContainerTemplate{Name: containerAgent, VolumeMounts: []api.VolumeMount{{Name: "x", MountPath: "/bin"}}}),
		"NODE_NAME and NVIDIA_*. Remove them":   container(api.ContainerTemplate{Name: containerEngine, Env: []api.EnvVar{{Name: "NVIDIA_VISIBLE_DEVICES", Value: "all"}}}),
	}
	gateways := map[string]func(*api.PodTemplate){
		"The containers of a pod of gateways are":      container(api.ContainerTemplate{Name: containerAgent}),
		"Pods of gateways have no init containers":     func(p *api.PodTemplate) { p.Spec.InitContainers = []api.InitContainerTemplate{{Name: "hook"}} },
		"of a gateway must be at least 20, because it": func(p *api.PodTemplate) { p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](5) },
	}
	for words, spoil := range ranks {
		d := b.deployment("w", 1)
		spoil(&d.Spec.Template)
		require.ErrorContains(t, b.c.Create(t.Context(), d), words)
	}
	for words, spoil := range gateways {
		d := b.deployment("w", 1)
		spoil(&d.Spec.Gateway.Template)
		require.ErrorContains(t, b.c.Create(t.Context(), d), words)
	}
}

// A checkpoint in an OCI image is mounted as an image volume, by ranks and by text servers.
func TestModelSource_WhenImageVolume(t *testing.T) {
	b := newBed(t)
	d := b.deployment("w", 1)
	d.Spec.Model.Source = api.ModelSource{ImageVolume: &api.ImageSource{Reference: "models.example/qwen3@sha256:" + strings.Repeat("0", 64), Path: "checkpoint"}}
	d.Spec.Gateway.Text = &api.Text{Image: "vllm"}
	require.NoError(t, b.c.Create(t.Context(), d))
	d = b.ready("w")
	want := corev1.ImageVolumeSource{Reference: d.Spec.Model.Source.ImageVolume.Reference, PullPolicy: corev1.PullIfNotPresent}
	gateway := &appsv1.Deployment{}
	require.NoError(t, b.c.Get(t.Context(), client.ObjectKey{Namespace: b.namespace, Name: gatewayName(d)}, gateway))
	for name, volumes := range map[string][]corev1.Volume{"rank": b.pod("w-0").Spec.Volumes, "gateway": gateway.Spec.Template.Spec.Volumes} {
		i := slices.IndexFunc(volumes, func(v corev1.Volume) bool { return v.Name == "models" })
		require.GreaterOrEqual(t, i, 0, name)
		require.Equal(t, &want, volumes[i].Image, name)
	}
	require.Equal(t, "/models/checkpoint", checkpointFolder(d))
}
