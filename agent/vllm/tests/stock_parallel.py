"""Parts that vLLM 0.32 lacks for data parallelism with experts spread over its ranks on processors.

A competitor in benches, not part of the package. As released, its experts take global numbers for local ones (the map
of experts is not used, and the first step reads beyond the weights), and the communicator of processors has no
`all_gatherv` and no `reduce_scatterv` (NotImplementedError). Both are added with gloo's collectives, as far as they
allow.
"""

from __future__ import annotations

import torch
import torch.distributed
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts


def patch() -> None:
    """Patches this process, before an engine is made."""
    whole = CPUUnquantizedExperts.apply

    def apply(self, output, hidden_states, w1, w2, topk_weights, topk_ids, activation, global_num_experts, expert_map, *args, **kwargs):
        if expert_map is not None:  # an expert of another rank becomes one of ours with weight 0
            here = expert_map[topk_ids.long()]
            topk_weights = topk_weights.masked_fill(here < 0, 0)
            topk_ids = here.clamp(min=0).to(topk_ids.dtype)
        return whole(self, output, hidden_states, w1, w2, topk_weights, topk_ids, activation, global_num_experts, None, *args, **kwargs)

    CPUUnquantizedExperts.apply = apply
    CpuCommunicator.all_gatherv = _all_gatherv
    CpuCommunicator.reduce_scatterv = _reduce_scatterv


def _all_gatherv(self, input_, dim=0, sizes=None):
    if isinstance(input_, list):
        return [_all_gatherv(self, one, dim, sizes) for one in input_]
    rows = sizes or [input_.shape[0]] * self.world_size
    padded = input_.new_zeros(max(rows), *input_.shape[1:])
    padded[: input_.shape[0]] = input_
    gathered = [torch.empty_like(padded) for _ in rows]
    torch.distributed.all_gather(gathered, padded, group=self.cpu_group)
    return torch.cat([one[:count] for one, count in zip(gathered, rows, strict=True)])


def _reduce_scatterv(self, input_, dim=-1, sizes=None):
    whole = input_.contiguous().clone()
    torch.distributed.all_reduce(whole, group=self.cpu_group)
    rows = sizes or [whole.shape[0] // self.world_size] * self.world_size
    begin = sum(rows[: self.rank_in_group])
    return whole[begin : begin + rows[self.rank_in_group]].clone()
