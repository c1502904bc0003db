"""Model families as tables: names, order of axes and stacking as checkpoints on the hub have them.

The agent reads experts by its own tables. These have what an engine must know of the rest, and what a script needs that
writes such a checkpoint. A family without a table is rejected by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family of checkpoints with one tensor per projection and expert, [out, in] each, as in torch's Linear.

    `experts` is the prefix of layer {layer}'s expert {expert}; `gate`, `up` and `down` follow it. gate and up are [inner, hidden], down
    [hidden, inner]. `renamed`: parts of names of dense tensors that differ in vLLM, hub -> vLLM.
    """

    model_type: str  # of config.json
    architecture: str  # of config.json, and vLLM's class
    experts: str
    gate: str
    up: str
    down: str
    expert_count: tuple[str, ...]  # keys of config.json; the first one present counts
    inner: tuple[str, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)

    def hub_name(self, name: str) -> str:
        """The name in the checkpoint of vLLM's `name`."""
        for hub, vllm in self.renamed.items():
            name = name.replace(vllm, hub)
        return name

    def expert_tensors(self, layer: int, expert: int) -> tuple[str, str, str]:
        """Names of gate, up and down."""
        prefix = self.experts.format(layer=layer, expert=expert)
        return prefix + self.gate, prefix + self.up, prefix + self.down


QWEN3_MOE = Family(
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    experts="model.layers.{layer}.mlp.experts.{expert}.",
    gate="gate_proj.weight",
    up="up_proj.weight",
    down="down_proj.weight",
    expert_count=("num_experts", "num_local_experts"),
    inner=("moe_intermediate_size",),
)
MIXTRAL = Family(
    model_type="mixtral",
    architecture="MixtralForCausalLM",
    experts="model.layers.{layer}.block_sparse_moe.experts.{expert}.",
    gate="w1.weight",
    up="w3.weight",
    down="w2.weight",
    expert_count=("num_local_experts",),
    inner=("intermediate_size",),
)
FAMILIES = (QWEN3_MOE, MIXTRAL)


def family_of(config: Mapping[str, object]) -> Family:
    """The family of a config.json. ValueError names a model without a table."""
    for family in FAMILIES:
        if config.get("model_type") == family.model_type:
            return family
    known = ", ".join(f.model_type for f in FAMILIES)
    raise ValueError(f"model_type {config.get('model_type')!r} is not supported by tangram_vllm; supported: {known}")
