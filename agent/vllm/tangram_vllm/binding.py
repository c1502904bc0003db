"""Objects that vLLM's classes need and vLLM does not pass to them: one rank per process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from .exchange import Exchange
from .families import Family


@dataclass(slots=True)
class Binding:
    """Set before the EngineCore is made, and kept as long as it lives; `exchange` changes with each epoch."""

    family: Family
    dense: Mapping[str, torch.Tensor]  # by name in the checkpoint; read-only memory
    kv: torch.Tensor  # uint8, the whole region
    exchange: Exchange


_bound: Binding | None = None


def bind(binding: Binding | None) -> None:
    """Sets the rank of this process, or none."""
    global _bound
    _bound = binding


def bound() -> Binding:
    """RuntimeError: an EngineCore is made or runs before its rank is bound."""
    if _bound is None:
        raise RuntimeError("no rank is bound: tangram_vllm.binding.bind comes before the EngineCore")
    return _bound
