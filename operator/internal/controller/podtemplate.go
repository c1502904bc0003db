package controller

import (
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	api "tangram.dev/api/v1alpha2"
)

// containerEngine is the name in a template for all engines of a pod.
const containerEngine = "engine"

// fromTemplate merges a template over a pod of the operator. It omits resources: containers are created with them
// (resourcesOf), because some follow from the spec.
func fromTemplate(t *api.PodTemplate, meta *metav1.ObjectMeta, pod *corev1.PodSpec) error {
	for to, from := range map[*map[string]string]map[string]string{&meta.Labels: t.Metadata.Labels, &meta.Annotations: t.Metadata.Annotations} {
		for k, v := range from {
			if *to == nil {
				*to = map[string]string{}
			}
			if _, taken := (*to)[k]; !taken { // keep ours: the operator finds its pods by its labels
				(*to)[k] = v
			}
		}
	}
	patch := t.Spec.DeepCopy()
	patch.Containers = expanded(patch.Containers, pod.Containers)
	patch.InitContainers = nil
	for i := range pod.InitContainers {
		if c := &pod.InitContainers[i]; initTemplateOf(&t.Spec, c.Name).ImagePullPolicy != "" {
			c.ImagePullPolicy = initTemplateOf(&t.Spec, c.Name).ImagePullPolicy
		}
	}
	original, err := json.Marshal(pod)
	if err != nil {
		return fmt.Errorf("pod template: %w", err)
	}
	change, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("pod template: %w", err)
	}
	merged, err := strategicpatch.StrategicMergePatch(original, change, corev1.PodSpec{})
	if err != nil {
		return fmt.Errorf("pod template: %w", err)
	}
	*pod = corev1.PodSpec{}
	if err := json.Unmarshal(merged, pod); err != nil {
		return fmt.Errorf("pod template: %w", err)
	}
	return nil
}

// expanded returns a container template for each container of the pod that has one, and omits the other templates.
func expanded(templates []api.ContainerTemplate, containers []corev1.Container) []api.ContainerTemplate {
	var out []api.ContainerTemplate
	for i := range containers {
		if t := templateOf(templates, containers[i].Name); t != nil {
			one := *t.DeepCopy()
			one.Name, one.Resources = containers[i].Name, api.Resources{}
			out = append(out, one)
		}
	}
	return out
}

// templateOf returns the template of a container; nil: none.
func templateOf(templates []api.ContainerTemplate, container string) *api.ContainerTemplate {
	for i := range templates {
		if name := templates[i].Name; name == container || name == containerEngine && strings.HasPrefix(container, containerEngine+"-") {
			return &templates[i]
		}
	}
	return nil
}

// initTemplateOf returns the template of an init container; empty: none.
func initTemplateOf(spec *api.PodTemplateSpec, name string) api.InitContainerTemplate {
	for _, t := range spec.InitContainers {
		if t.Name == name {
			return t
		}
	}
	return api.InitContainerTemplate{}
}

// resourcesOf returns a container's resources in a template.
func resourcesOf(templates []api.ContainerTemplate, container string) corev1.ResourceRequirements {
	if t := templateOf(templates, container); t != nil {
		return t.Resources.DeepCopy().Requirements()
	}
	return corev1.ResourceRequirements{}
}
