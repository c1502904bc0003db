"""Registers the layer, the loader and the KV of this package with vLLM, in the process that calls it."""

from __future__ import annotations

_registered = False


def register() -> None:
    """vLLM calls it in every process (entry point vllm.general_plugins), and our code before it makes an EngineCore.

    Later calls have no effect. contract.ContractError: vLLM is not the version that this package was written for.
    """
    global _registered
    if _registered:
        return
    from . import contract

    contract.check()
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
    from vllm.model_executor.model_loader import register_model_loader

    from . import experts, kv, loader

    RoutedExperts.register_oot(experts.TangramExperts, name="RoutedExperts")
    register_model_loader("tangram")(loader.TangramLoader)
    kv.install()
    _registered = True
