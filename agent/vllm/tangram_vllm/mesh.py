"""Rows of tokens to the ranks that have pieces of their experts, by the kit's exchange, and the results back."""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from tangram_client import Maps
from tangram_engine import Element, Kit, PeerGone

from .exchange import BrokenStep
from .ops import PLACED, Operator, Table

_ELEMENTS = {torch.float32: Element.F32, torch.bfloat16: Element.BF16}
# tge_piece
_PIECES = np.dtype([("address", "u8"), ("replica", "u4"), ("expert", "u4"), ("granule_start", "u4"), ("granules", "u4")])


class MeshExchange:
    """The exchange of a rank in a world of any size; call `enter` for each epoch. As exchange.Exchange."""

    def __init__(self, kit: Kit, operator: Operator, dtype: torch.dtype, *, private: bool = False) -> None:
        """dtype: of weights and rows, float32 or bfloat16.

        private: for benches, computes with copies of the pieces, made again in each epoch.
        """
        self._kit, self._operator, self._dtype, self._private = kit, operator, dtype, private
        self._copies: dict[int, list[torch.Tensor]] = {}
        self._layers: frozenset[int] = frozenset()
        self._tables: dict[int, Table] = {}

    def enter(self, maps: Maps) -> None:
        """Sets the active layout. A layer's table is made when the layer is first computed."""
        self._layers = frozenset(m.layer for m in maps.layers if m.moe_ordinal is not None)
        self._tables, self._copies = {}, {}
        if self._private:
            for layer in self._layers:
                self._table(layer)

    def leave(self) -> None:
        self._layers, self._tables, self._copies = frozenset(), {}, {}

    def exchange(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        y = torch.zeros(x.shape, dtype=torch.float32)
        if layer not in self._layers:  # outside a step: vLLM runs its model to test it
            return y
        x, ids, weights = x.to(self._dtype).contiguous(), ids.int().contiguous(), weights.float().contiguous()
        rows, k = ids.shape
        try:
            came = self._kit.dispatch(layer, _ELEMENTS[self._dtype], rows, k, x.data_ptr(), ids.data_ptr(), weights.data_ptr())
            results = torch.zeros(came.rows, x.shape[1], dtype=torch.float32)
            if came.rows:
                self._operator.add_at(self._table(layer), came.x, came.replicas, came.weights, came.rows, k, results.data_ptr())
            self._kit.combine(results.data_ptr(), y.data_ptr())
        except PeerGone as error:
            raise BrokenStep(str(error)) from error
        return y

    def _table(self, layer: int) -> Table:
        if layer not in self._tables:
            model, pieces = self._kit.client.model, np.frombuffer(self._kit.pieces(layer), _PIECES)
            placed = np.empty(len(pieces), PLACED)
            placed["address"], placed["expert"], placed["granules"] = pieces["address"], pieces["replica"], pieces["granules"]
            if self._private:
                granule = 3 * model.granule_rows * model.hidden * self._dtype.itemsize  # a piece is contiguous
                self._copies[layer] = [_copied(int(piece["address"]), int(piece["granules"]) * granule) for piece in placed]
                placed["address"] = [copy.data_ptr() for copy in self._copies[layer]]
            self._tables[layer] = Table(model.hidden, model.granule_rows, self._dtype, int(model.slab_format), placed)
        return self._tables[layer]


def _copied(address: int, size: int) -> torch.Tensor:
    copy = torch.empty(size, dtype=torch.uint8)
    ctypes.memmove(copy.data_ptr(), address, size)
    return copy
