package controller

import (
	"context"
	"crypto/sha256"
	"fmt"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	api "tangram.dev/api/v1alpha2"
)

// configHashDigits is the length of the hash in a ConfigMap's name: enough for the configurations of one world.
const configHashDigits = 10

// checkpointFolder is the path in containers that mount the checkpoint.
func checkpointFolder(d *api.MoEDeployment) string {
	if image := d.Spec.Model.Source.ImageVolume; image != nil {
		return path.Join(dirModels, string(image.Path))
	}
	return path.Join(dirModels, string(d.Spec.Model.Source.PersistentVolumeClaim.Path))
}

// agentConfig is the file of new agents (agent/server/README.md), named by its content. Flags carry a pod's own values.
func agentConfig(d *api.MoEDeployment) (*corev1.ConfigMap, error) {
	file := map[string]any{
		"world": worldName(d), "ranks": d.Spec.RanksPerPod,
		"memory_bytes": d.Spec.Memory.Weights.Value(), "kv_bytes": d.Spec.Memory.KVCache.Value(),
		"spare_banks": d.Spec.Tuning.SpareBanks,
		"checkpoint":  checkpointFolder(d), "revision": "1",
		"listen": everywhere(portAgent), "data_listen": everywhere(portData), "metrics_listen": everywhere(portMetrics), "insecure_fabric": d.IsPlaintext(),
		"engine_socket": dirRun + "/agent.sock", "engine_token_file": dirRun + "/engine.token", "in_world_file": inWorld, "hashes_file": dirAgent + "/hashes",
		"tls": map[string]string{"ca": dirTLS + "/" + keyCA, "cert": dirTLS + "/" + keyAgentCert, "key": dirTLS + "/" + keyAgentKey},
		"log": map[string]any{"level": "info", "json": true},
	}
	if rows := d.Spec.Tuning.GranuleRows; rows > 0 {
		file["granule_rows"] = rows
	}
	if d.Spec.Tuning.SlabFormat == api.RowMajor {
		file["slab_format"] = "row-major"
	}
	if d.SharesNodeMemory() {
		file["node_socket_dir"] = dirNode
	}
	if d.Spec.Memory.PageSize == api.Page2Mi {
		file["hugetlb"], file["page_bytes"] = true, hugePageBytes
	}
	if d.OnGPU() {
		file["device"], file["page_bytes"] = "cuda", handleSize(d).Value()
	}
	if share := d.Spec.Transition.BandwidthPercent; share > 0 {
		file["staging_percent"] = share
	}
	if most := d.Spec.Tuning.MaxStepStretchPercent; most > 0 {
		file["max_step_stretch_percent"] = most
	}
	wire, err := yaml.Marshal(file)
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("%s-agent-%x", d.Name, sha256.Sum256(wire))[:len(d.Name)+len("-agent-")+configHashDigits]
	return &corev1.ConfigMap{ObjectMeta: meta(d, name, api.ComponentRank), Immutable: ptr.To(true), Data: map[string]string{"agent.yaml": string(wire)}}, nil
}

// keepConfigs restores the configuration of existing pods if new pods use it too. It removes configurations that
// neither an existing nor a new pod refers to. An existing pod keeps its own: its agent may restart in place with an
// older image, which rejects unknown keys.
func (r *Reconciler) keepConfigs(ctx context.Context, d *api.MoEDeployment, mine []corev1.Pod) error {
	wanted, err := agentConfig(d)
	if err != nil {
		return err
	}
	var list corev1.ConfigMapList
	if err := r.List(ctx, &list, client.InNamespace(d.Namespace), client.MatchingFields{byWorld: d.Name}, client.MatchingLabels(selector(d, api.ComponentRank))); err != nil {
		return err
	}
	missing := !slices.ContainsFunc(list.Items, func(c corev1.ConfigMap) bool { return c.Name == wanted.Name })
	if missing && slices.ContainsFunc(mine, func(p corev1.Pod) bool { return p.DeletionTimestamp == nil && refersTo(&p, wanted.Name) }) {
		if err := r.createOnce(ctx, d, wanted, func() error { return nil }); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	unused := slices.DeleteFunc(list.Items, func(c corev1.ConfigMap) bool {
		return c.Name == wanted.Name || c.DeletionTimestamp != nil || !metav1.IsControlledBy(&c, d)
	})
	if len(unused) == 0 {
		return nil
	}
	// Live: a pod that was just created may not be in the cache yet.
	var pods corev1.PodList
	if err := r.APIReader.List(ctx, &pods, client.InNamespace(d.Namespace), client.MatchingLabels(selector(d, api.ComponentRank))); err != nil {
		return err
	}
	for i := range unused {
		name := unused[i].Name
		if slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return refersTo(&p, name) }) {
			continue
		}
		if err := r.remove(ctx, &unused[i]); err != nil {
			return fmt.Errorf("delete unused ConfigMap %s: %w", name, err)
		}
	}
	return nil
}

// refersTo says whether a pod mounts the ConfigMap with that name.
func refersTo(p *corev1.Pod, config string) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.ConfigMap != nil && v.ConfigMap.Name == config })
}
