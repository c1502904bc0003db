package controller

import (
	"cmp"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	api "tangram.dev/api/v1alpha2"
)

const containerAgent = "agent"

// Huge pages as the kubelet names them.
const (
	hugePageBytes                     = 2 << 20
	hugePages     corev1.ResourceName = corev1.ResourceHugePagesPrefix + "2Mi"
)

// rankGrace is the time to drain a pod of ranks, in seconds, unless the template sets another.
const rankGrace = 300

// longestStart is how long an engine may take to start.
const longestStart = 20 * time.Minute

// agentOverhead is an agent's memory besides the ranks' pools: code, gRPC, staging buffers.
var agentOverhead = resource.MustParse("256Mi")

func restricted() *corev1.SecurityContext {
	return &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}
}

func restrictedPod() *corev1.PodSecurityContext {
	return &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](userID), RunAsGroup: ptr.To[int64](userID), FSGroup: ptr.To[int64](userID),
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}
}

// everywhere is a port on all IPv4 and IPv6 addresses of a pod, which are not known before the pod runs.
func everywhere(port int32) string { return fmt.Sprintf("[::]:%d", port) }

func fieldEnv(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}}
}

// rankPod is the pod of an ordinal: an agent, which reads the ConfigMap named config, and an engine per rank (docs/architecture.md, section 9).
func (r *Reconciler) rankPod(d *api.MoEDeployment, ordinal int, config string) (*corev1.Pod, error) {
	name := podName(d, ordinal)
	object := meta(d, name, api.ComponentRank)
	object.Labels = rankLabels(d, ordinal)
	object.OwnerReferences = []metav1.OwnerReference{ownerReference(d)}
	containers := []corev1.Container{r.agentContainer(d)}
	for device := range d.Spec.RanksPerPod {
		containers = append(containers, r.engineContainer(d, device))
	}
	for i := range containers {
		// An agent or engine that dies alone restarts next to the other, which holds its memory.
		containers[i].RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	}
	pod := &corev1.Pod{ObjectMeta: object, Spec: corev1.PodSpec{
		RestartPolicy:      corev1.RestartPolicyNever,
		ServiceAccountName: d.Name, AutomountServiceAccountToken: ptr.To(false), EnableServiceLinks: ptr.To(false),
		TerminationGracePeriodSeconds: ptr.To[int64](rankGrace),
		SecurityContext:               restrictedPod(),
		TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway,
			LabelSelector: &metav1.LabelSelector{MatchLabels: selector(d, api.ComponentRank)}}},
		InitContainers: []corev1.Container{{Name: "hook", Image: r.Images.agent(d), ImagePullPolicy: corev1.PullIfNotPresent, Resources: initTemplateOf(&d.Spec.Template.Spec, "hook").Resources.Requirements(),
			Command: []string{"/bin/tangram-hook", "install", hookFile}, SecurityContext: restricted(),
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			VolumeMounts:             []corev1.VolumeMount{{Name: "run", MountPath: dirRun}}}},
		Containers: containers,
		Volumes:    volumes(d, name, config),
	}}
	if d.SharesNodeMemory() {
		r.shareNode(d, &pod.Spec)
	}
	if d.OnGPU() {
		withGPU(d, &pod.Spec)
	}
	return pod, fromTemplate(&d.Spec.Template, &pod.ObjectMeta, &pod.Spec)
}

func volumes(d *api.MoEDeployment, pod, config string) []corev1.Volume {
	keys := func(volume string, keys ...string) corev1.Volume {
		source := &corev1.SecretVolumeSource{SecretName: podTLSName(pod), DefaultMode: ptr.To[int32](0o440)}
		for _, k := range keys {
			source.Items = append(source.Items, corev1.KeyToPath{Key: k, Path: k})
		}
		return corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{Secret: source}}
	}
	return []corev1.Volume{
		{Name: "run", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: "agent", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}, // not for engines
		{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: config}}}},
		// Each container gets only its own key.
		keys("tls-agent", keyCA, keyAgentCert, keyAgentKey),
		keys("tls-engine", keyCA, keyEngineCert, keyEngineKey),
		modelsVolume(d),
	}
}

func modelsVolume(d *api.MoEDeployment) corev1.Volume {
	v := corev1.Volume{Name: "models"}
	if image := d.Spec.Model.Source.ImageVolume; image != nil {
		v.Image = &corev1.ImageVolumeSource{Reference: image.Reference, PullPolicy: cmp.Or(image.PullPolicy, corev1.PullIfNotPresent)}
	} else {
		v.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: d.Spec.Model.Source.PersistentVolumeClaim.ClaimName, ReadOnly: true}
	}
	return v
}

// awaitLeave delays the end of a deleted pod's containers until its ranks have left the world.
func awaitLeave() *corev1.Lifecycle {
	return &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{hookFile, "await-leave", inWorld}}}}
}

func tcpProbe(port int32) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(port)}}, PeriodSeconds: 2}
}

// startupProbe waits for an engine's listener, which opens after its imports and its agent's acceptance. vLLM takes
// some 12 s on CPUs, others may take minutes. Readiness is probed later; a failed start causes a restart.
func startupProbe(port int32) *corev1.Probe {
	p := tcpProbe(port)
	p.FailureThreshold = int32(longestStart / (time.Duration(p.PeriodSeconds) * time.Second))
	return p
}

// Default CPU requests of containers. The kernel shares CPUs between pods by their requests, so on a busy node a
// container without a request gets next to nothing. A slow gateway delays all its streams, and in a flip engines wait
// for their agents. Agents limit their background transfers themselves (maxStepStretchPercent), because nice values
// work only within a container.
const (
	engineProcessor  = "200m"
	agentProcessor   = "100m"
	gatewayProcessor = "200m"
)

// withProcessor returns asked with a CPU request, if it has no CPU request or limit.
func withProcessor(asked corev1.ResourceRequirements, processor string) corev1.ResourceRequirements {
	out := *asked.DeepCopy()
	if out.Requests.Cpu().IsZero() && out.Limits.Cpu().IsZero() {
		if out.Requests == nil {
			out.Requests = corev1.ResourceList{}
		}
		out.Requests[corev1.ResourceCPU] = resource.MustParse(processor)
	}
	return out
}

// agentMemory is the memory request of an agent: its ranks' pools, and agentOverhead.
func agentMemory(d *api.MoEDeployment) corev1.ResourceList {
	if d.OnGPU() { // the pools are not in host memory
		return corev1.ResourceList{corev1.ResourceMemory: agentOverhead.DeepCopy()}
	}
	memory, ranks := d.Spec.Memory, int64(d.Spec.RanksPerPod)
	quantity := func(bytes int64) resource.Quantity { return *resource.NewQuantity(bytes, resource.BinarySI) }
	if memory.PageSize == api.Page2Mi {
		whole := func(pool resource.Quantity) int64 {
			return (pool.Value() + hugePageBytes - 1) / hugePageBytes * hugePageBytes
		}
		return corev1.ResourceList{corev1.ResourceMemory: quantity(agentOverhead.Value()),
			hugePages: quantity(ranks * (whole(memory.Weights) + whole(memory.KVCache)))}
	}
	return corev1.ResourceList{corev1.ResourceMemory: quantity(ranks*(memory.Weights.Value()+memory.KVCache.Value()) + agentOverhead.Value())}
}

func (r *Reconciler) agentContainer(d *api.MoEDeployment) corev1.Container {
	resources := withProcessor(resourcesOf(d.Spec.Template.Spec.Containers, containerAgent), agentProcessor)
	for _, list := range []*corev1.ResourceList{&resources.Requests, &resources.Limits} {
		if *list == nil {
			*list = corev1.ResourceList{}
		}
		maps.Copy(*list, agentMemory(d)) // the pools soon become resident as a whole, so limits equal requests
	}
	return corev1.Container{
		Name: containerAgent, Image: r.Images.agent(d), ImagePullPolicy: corev1.PullIfNotPresent,
		Command: []string{"/bin/tangram-agent"},
		Args: []string{"--config", dirConfig + "/agent.yaml", "--set", "pod=$(POD_NAME)", "--set", "pod_uid=$(POD_UID)",
			"--set", "node=$(NODE_NAME)", "--set", "advertise=$(POD_IP)"},
		Env: []corev1.EnvVar{fieldEnv("POD_NAME", "metadata.name"), fieldEnv("POD_UID", "metadata.uid"),
			fieldEnv("NODE_NAME", "spec.nodeName"), fieldEnv("POD_IP", "status.podIP")},
		Ports: []corev1.ContainerPort{{Name: "agent", ContainerPort: portAgent, Protocol: corev1.ProtocolTCP}, {Name: "data", ContainerPort: portData, Protocol: corev1.ProtocolTCP},
			{Name: "metrics", ContainerPort: portMetrics, Protocol: corev1.ProtocolTCP}},
		ReadinessProbe: tcpProbe(portAgent), Lifecycle: awaitLeave(), Resources: resources,
		SecurityContext: restricted(), TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		VolumeMounts: []corev1.VolumeMount{{Name: "run", MountPath: dirRun}, {Name: "agent", MountPath: dirAgent}, {Name: "tmp", MountPath: "/tmp"},
			{Name: "config", MountPath: dirConfig, ReadOnly: true}, {Name: "tls-agent", MountPath: dirTLS, ReadOnly: true}, {Name: "models", MountPath: dirModels, ReadOnly: true}},
	}
}

func (r *Reconciler) engineContainer(d *api.MoEDeployment, device int32) corev1.Container {
	e, name := d.Spec.Engine, fmt.Sprintf("%s-%d", containerEngine, device)
	args := []string{"--agent-socket=" + dirRun + "/agent.sock", "--token-file=" + dirRun + "/engine.token", fmt.Sprintf("--device=%d", device),
		"--mesh-listen=" + everywhere(portMesh+device), "--serve-listen=" + everywhere(portServe+device), "--advertise=$(POD_IP)",
		"--tls-ca=" + dirTLS + "/" + keyCA, "--tls-cert=" + dirTLS + "/" + keyEngineCert, "--tls-key=" + dirTLS + "/" + keyEngineKey}
	if d.IsPlaintext() {
		args = append(args, "--insecure-fabric")
	}
	return corev1.Container{
		Name: name, Image: r.Images.engine(d), ImagePullPolicy: corev1.PullIfNotPresent,
		Args: append(args, e.Args...),
		Env:  []corev1.EnvVar{fieldEnv("POD_IP", "status.podIP")},
		Ports: []corev1.ContainerPort{{Name: fmt.Sprintf("mesh-%d", device), ContainerPort: portMesh + device, Protocol: corev1.ProtocolTCP},
			{Name: fmt.Sprintf("serve-%d", device), ContainerPort: portServe + device, Protocol: corev1.ProtocolTCP}},
		StartupProbe: startupProbe(portServe + device), ReadinessProbe: tcpProbe(portServe + device), Lifecycle: awaitLeave(), Resources: withProcessor(resourcesOf(d.Spec.Template.Spec.Containers, name), engineProcessor),
		SecurityContext: restricted(), TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		VolumeMounts: []corev1.VolumeMount{{Name: "run", MountPath: dirRun}, {Name: "tmp", MountPath: "/tmp"},
			{Name: "tls-engine", MountPath: dirTLS, ReadOnly: true}},
	}
}
