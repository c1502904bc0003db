package controller

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"tangram.dev/operator/internal/kubestore"

	api "tangram.dev/api/v1alpha1"
)

func meta(d *api.MoEDeployment, name, component string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: d.Namespace, Labels: labels(d, component)}
}

// shared makes what all pods of the world need.
func (r *Reconciler) shared(ctx context.Context, d *api.MoEDeployment) error {
	account := &corev1.ServiceAccount{ObjectMeta: meta(d, d.Name, "account"), AutomountServiceAccountToken: ptr.To(false)}
	config, err := agentConfig(d)
	if err != nil {
		return err
	}
	objects := []client.Object{account, config, enginesService(d), r.rankPolicy(d), r.gatewayPolicy(d)}
	if claim := gpuClaim(d); claim != nil {
		objects = append(objects, claim)
	}
	for _, object := range objects {
		if err := r.apply(ctx, d, object); err != nil {
			return err
		}
	}
	records := &corev1.ConfigMap{ObjectMeta: meta(d, recordsName(d), "records")}
	return r.createOnce(ctx, d, records, func() error { return nil })
}

func (r *Reconciler) records(d *api.MoEDeployment) *kubestore.Store {
	return &kubestore.Store{Reader: r.APIReader, Writer: r.Client, Key: client.ObjectKey{Namespace: d.Namespace, Name: recordsName(d)}}
}

// agentConfig is the agents' file (agent/server/README.md); what only a pod knows comes by flags.
func agentConfig(d *api.MoEDeployment) (*corev1.ConfigMap, error) {
	checkpoint := dirModels
	if claim := d.Spec.Model.Source.PersistentVolumeClaim; claim != nil && claim.Path != "" {
		checkpoint += "/" + claim.Path
	}
	file := map[string]any{
		"world": worldName(d), "ranks": d.Spec.RanksPerPod,
		"memory_bytes": d.Spec.Limits.MemoryPerRank.Value(), "kv_bytes": d.Spec.Limits.KVMemoryPerRank.Value(),
		"spare_banks": d.Spec.Limits.SpareBanks, "granule_rows": d.Spec.Model.GranuleRows,
		"checkpoint": checkpoint, "revision": d.Spec.Model.Revision,
		"listen": everywhere(portAgent), "data_listen": everywhere(portData), "metrics_listen": everywhere(portMetrics), "insecure_fabric": d.Spec.Network.InsecureFabric,
		"engine_socket": dirRun + "/agent.sock", "engine_token_file": dirRun + "/engine.token", "in_world_file": inWorld, "hashes_file": dirAgent + "/hashes",
		"tls": map[string]string{"ca": dirTLS + "/" + keyCA, "cert": dirTLS + "/" + keyAgentCert, "key": dirTLS + "/" + keyAgentKey},
		"log": map[string]any{"level": "info", "json": true},
	}
	if d.Spec.Model.SlabFormat == api.RowMajor {
		file["slab_format"] = "row-major"
	}
	if d.Spec.Network.ShareNodeMemory {
		file["node_folder"] = dirNode
	}
	if d.Spec.Limits.HugePages {
		file["hugetlb"], file["page_bytes"] = true, hugePageBytes
	}
	if d.Spec.Backend == api.BackendCUDA {
		file["device"], file["page_bytes"] = "cuda", gpuOf(d).HandleSize.Value()
	}
	if share := d.Spec.Transition.StagingPercent; share > 0 {
		file["staging_percent"] = share
	}
	if most := d.Spec.Transition.MaxStepStretchPercent; most > 0 {
		file["max_step_stretch_percent"] = most
	}
	wire, err := yaml.Marshal(file)
	if err != nil {
		return nil, err
	}
	return &corev1.ConfigMap{ObjectMeta: meta(d, configName(d), api.ComponentRank), Data: map[string]string{"agent.yaml": string(wire)}}, nil
}

// enginesService leads to some engine that is in the layout in force: gateways ask it for the world.
func enginesService(d *api.MoEDeployment) *corev1.Service {
	chosen := selector(d, api.ComponentRank)
	chosen[api.MemberLabel] = "true"
	return &corev1.Service{ObjectMeta: meta(d, enginesName(d), api.ComponentRank), Spec: corev1.ServiceSpec{Selector: chosen,
		// A member is asked for the world whether or not the kubelet has seen it ready yet.
		PublishNotReadyAddresses: true,
		Ports:                    []corev1.ServicePort{{Name: "serve", Protocol: corev1.ProtocolTCP, Port: portServe, TargetPort: intstr.FromInt32(portServe)}}}}
}
