"""The interface of a layer of experts to other ranks, and the exchange of a rank that has all experts itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from .ops import Operator, Table


class BrokenStep(Exception):
    """The step cannot be completed: a peer is gone, vLLM works. It is undone (rewind), and computed again later."""


class Exchange(Protocol):
    """Rows to the ranks that have their experts, and the results back."""

    def exchange(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The routed experts' result for rows of a model layer, float32 [rows, hidden].

        x: [rows, hidden], in the model's dtype; ids: int32 [rows, k], of the model's experts; weights: float32
        [rows, k]. Also called with no rows, because other ranks may have some. BrokenStep ends the step.
        """
        ...


class LocalExchange:
    """The exchange of a rank that has every piece: a world of one."""

    def __init__(self, tables: Mapping[int, Table], operator: Operator) -> None:
        """`tables` by model layer."""
        self._tables, self._operator = tables, operator

    def exchange(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        y = torch.zeros(x.shape, dtype=torch.float32)
        if len(x):
            self._operator.add(self._tables[layer], x.float().contiguous(), ids.to(torch.int32).contiguous(), weights.float().contiguous(), y)
        return y
