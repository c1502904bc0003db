package v1alpha2

import "slices"

// SpecMode is the mode of the spec: ExpertParallel, TensorParallel, Auto, or Hybrid if it has layers.
func (d *MoEDeployment) SpecMode() Mode {
	switch p := d.Spec.Parallelism; {
	case len(p.Layers) > 0:
		return ModeHybrid
	case p.Mode != "":
		return p.Mode
	}
	return ModeExpert
}

// IsAuto says whether the operator chooses the mode.
func (d *MoEDeployment) IsAuto() bool { return d.SpecMode() == ModeAuto }

// AppliesMode says whether the operator also applies the mode that it chooses.
func (d *MoEDeployment) AppliesMode() bool {
	a := d.Spec.Parallelism.Auto
	return d.IsAuto() && a != nil && a.Action == ActionApply
}

// IsAutoscaled says whether the operator chooses the number of replicas.
func (d *MoEDeployment) IsAutoscaled() bool {
	return d.Spec.Autoscaling != nil && d.Spec.MinReplicas != nil && d.Spec.MaxReplicas != nil
}

// AppliesReplicas says whether the operator also applies the number of replicas that it chooses.
func (d *MoEDeployment) AppliesReplicas() bool {
	return d.IsAutoscaled() && d.Spec.Autoscaling.Action == ActionApply
}

// DesiredReplicas of the world: spec.replicas, or what autoscaling decided, within its bounds.
func (d *MoEDeployment) DesiredReplicas() int32 {
	n := d.Spec.Replicas
	if !d.AppliesReplicas() {
		return n
	}
	if d.Status.Policy != nil && d.Status.Policy.Replicas > 0 {
		n = d.Status.Policy.Replicas
	}
	return min(max(n, *d.Spec.MinReplicas), *d.Spec.MaxReplicas)
}

// DesiredLayers of a hybrid: those of the spec, or in mode Auto what the policy decided.
func (d *MoEDeployment) DesiredLayers() []LayerRange {
	if !d.IsAuto() {
		return d.Spec.Parallelism.Layers
	}
	if d.Status.Policy != nil {
		return d.Status.Policy.Layers
	}
	return nil
}

// OnGPU says whether weights and KV cache are in the memory of GPUs.
func (d *MoEDeployment) OnGPU() bool { return d.Spec.Accelerator.Type == AcceleratorNVIDIA }

// IsPlaintext says whether the connections between pods are not encrypted.
func (d *MoEDeployment) IsPlaintext() bool { return d.Spec.Network.Encryption == EncryptionNone }

// SharesNodeMemory says whether agents on one node map each other's memory.
func (d *MoEDeployment) SharesNodeMemory() bool {
	return d.Spec.Network.NodeMemorySharing == NodeMemorySharingEnabled
}

// Rebalances says whether the load of experts is evaluated.
func (d *MoEDeployment) Rebalances() bool {
	return slices.Contains([]RebalanceMode{RebalanceRecommend, RebalanceApply}, d.Spec.Experts.Rebalance.Mode)
}
