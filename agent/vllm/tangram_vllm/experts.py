"""The layer of experts in vLLM's models: it has no weights, and gets its rows' results from the exchange."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig, FusedMoEQuantConfig
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.models.utils import extract_layer_index

from .binding import bound


class TangramMethod(FusedMoEMethodBase):
    """Replaces a kernel over weights. vLLM's router has chosen global ids before; vLLM's kernels do not dispatch or
    reduce."""

    def create_weights(self, layer: torch.nn.Module, *_: Any, **__: Any) -> None:
        """Creates no weights: pieces are the agent's. ValueError: experts that the operator does not compute."""
        if layer.activation != MoEActivation.SILU:
            raise ValueError(f"{layer.layer_name}: experts with activation {layer.activation} are not computed: silu is")
        if layer.apply_router_weight_on_input:
            raise ValueError(f"{layer.layer_name}: router weights on the input of experts are not computed")

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        pass

    def get_fused_moe_quant_config(self, layer: torch.nn.Module) -> FusedMoEQuantConfig:
        return FusedMoEQuantConfig.make()

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor,
              shared_experts: Any, shared_experts_input: torch.Tensor | None) -> torch.Tensor:
        """x: [rows, hidden]. vLLM computes shared experts itself: they are dense, and its runner adds them."""
        y = bound().exchange.exchange(extract_layer_index(layer.layer_name), x, topk_ids, topk_weights)
        return y.to(x.dtype)


class TangramExperts(RoutedExperts):
    """Replaces RoutedExperts in every model (plugin.register)."""

    def _get_quant_method(self, prefix: str, quant_config: Any, moe_config: FusedMoEConfig) -> FusedMoEMethodBase:
        return TangramMethod(moe_config)
