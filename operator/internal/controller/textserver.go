package controller

import (
	"path"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	api "tangram.dev/api/v1alpha2"
)

const (
	containerText = "text"
	dirSockets    = "/run/tangram"
	dirChat       = "/etc/tangram/chat"
)

// Default memory of a text server: its imports, a tokenizer, and requests.
var (
	textMemory      = resource.MustParse("1Gi")
	textMemoryLimit = resource.MustParse("2Gi")
)

// textProcessor is the default CPU request of a text server.
const textProcessor = "200m"

// withText gives a gateway's pod a tokenizer: a text server that shares two UNIX sockets with the gateway, or a flag.
func (r *Reconciler) withText(d *api.MoEDeployment, model string, pod *corev1.PodSpec) {
	t, gateway := d.Spec.Gateway.Text, &pod.Containers[0]
	if t == nil {
		return
	}
	if t.Tokenizer == api.TokenizerBytes {
		gateway.Args = append(gateway.Args, "--tokenizer=bytes")
		return
	}
	sockets := corev1.VolumeMount{Name: "sockets", MountPath: dirSockets}
	both := []string{"--tokens-socket=" + dirSockets + "/tokens.sock", "--text-socket=" + dirSockets + "/text.sock"}
	gateway.Args = append(gateway.Args, both...)
	gateway.VolumeMounts = append(gateway.VolumeMounts, sockets)
	image := t.Image
	if image == "" {
		image = r.Images.engine(d)
	}
	text := corev1.Container{
		Name: containerText, Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
		Command: []string{"/bin/tangram-front"},
		Args:    append(both, textFlags(d, model)...),
		// A rollout of gateways waits for the first rendering. No readiness probe: token-id requests do not need it.
		StartupProbe:  textProbe(5*time.Second, longestStart),
		LivenessProbe: textProbe(30*time.Second, 90*time.Second),
		Resources:     textResources(resourcesOf(d.Spec.Gateway.Template.Spec.Containers, containerText)), SecurityContext: restricted(), TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		VolumeMounts: []corev1.VolumeMount{sockets, {Name: "tmp", MountPath: "/tmp"}, {Name: "models", MountPath: dirModels, ReadOnly: true}},
	}
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: "sockets", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		corev1.Volume{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}, modelsVolume(d))
	if c := t.ChatTemplate; c != nil {
		text.VolumeMounts = append(text.VolumeMounts, corev1.VolumeMount{Name: "chat", MountPath: dirChat, ReadOnly: true})
		pod.Volumes = append(pod.Volumes, corev1.Volume{Name: "chat", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: c.LocalObjectReference, Items: []corev1.KeyToPath{{Key: c.Key, Path: "template.jinja"}}, Optional: c.Optional}}})
	}
	pod.Containers = append(pod.Containers, text)
}

// textFlags are flags of vLLM.
func textFlags(d *api.MoEDeployment, model string) []string {
	t := d.Spec.Gateway.Text
	flags := []string{"--model=" + checkpointFolder(d), "--served-model-name=" + model}
	if t.ToolCallParser != "" {
		flags = append(flags, "--enable-auto-tool-choice", "--tool-call-parser="+t.ToolCallParser)
	}
	if t.ReasoningParser != "" {
		flags = append(flags, "--reasoning-parser="+t.ReasoningParser)
	}
	if t.ChatTemplate != nil {
		flags = append(flags, "--chat-template="+path.Join(dirChat, "template.jinja"))
	}
	return append(flags, t.Args...)
}

// textProbe queries the gateway, which queries the text server, because the server listens only on a UNIX socket.
func textProbe(every, patience time.Duration) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/textz", Port: intstr.FromInt32(portGatewayMetrics)}},
		PeriodSeconds: int32(every / time.Second), TimeoutSeconds: int32(every / time.Second), FailureThreshold: int32(patience / every),
		TerminationGracePeriodSeconds: ptr.To[int64](1)} // a hung server would end only after its gateway
}

func textResources(asked corev1.ResourceRequirements) corev1.ResourceRequirements {
	out := withProcessor(asked, textProcessor)
	if !out.Requests.Memory().IsZero() || !out.Limits.Memory().IsZero() {
		return out
	}
	for _, list := range []*corev1.ResourceList{&out.Requests, &out.Limits} {
		if *list == nil {
			*list = corev1.ResourceList{}
		}
	}
	out.Requests[corev1.ResourceMemory], out.Limits[corev1.ResourceMemory] = textMemory.DeepCopy(), textMemoryLimit.DeepCopy()
	return out
}
