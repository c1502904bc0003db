"""Rows of tokens to the ranks that have pieces of their experts, over the kit's exchange, and the results back."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch
from tangram_client import Client, Maps
from tangram_engine import Kit, PeerGone

from .exchange import BrokenStep
from .ops import Operator, Placed, Table

_HEAD = struct.Struct("<II")  # rows, k
_DISPATCH, _COMBINE = 0, 1


class _Layer:
    """A layer of experts in the epoch in force. Alternatives of an expert (redundant copies) are told apart: expert e's a-th is e * copies + a."""

    def __init__(self, client: Client, maps: Maps, layer: int, dtype: torch.dtype) -> None:
        model, experts = client.model, maps.layers[layer].experts
        self.copies = max((len(e.alternatives) for e in experts), default=1)
        self.replicas = torch.ones(model.experts, dtype=torch.int64)
        self.has = torch.zeros(maps.world_size, model.experts * self.copies, dtype=torch.bool)
        mine = []
        for e, expert in enumerate(experts):
            self.replicas[e] = len(expert.alternatives)
            for a, alternative in enumerate(expert.alternatives):
                for piece in alternative:
                    if piece.granule_count == 0:
                        continue
                    self.has[piece.rank, e * self.copies + a] = True
                    if piece.rank == maps.rank:
                        mine.append(Placed(e * self.copies + a, piece.granule_count, piece.address))
        self.table = Table(model.hidden, model.granule_rows, dtype, int(model.slab_format), mine)
        ordinal = maps.layers[layer].moe_ordinal
        assert ordinal is not None
        self.ordinal = ordinal


class MeshExchange:
    """Of a rank of a world of any width; `enter` for each epoch. As exchange.Exchange."""

    def __init__(self, kit: Kit, operator: Operator, dtype: torch.dtype) -> None:
        self._kit, self._operator, self._dtype = kit, operator, dtype
        self._layers: dict[int, _Layer] = {}
        self._turn = 0

    def enter(self, maps: Maps) -> None:
        """The pieces of this layout from here on."""
        self._layers = {m.layer: _Layer(self._kit.client, maps, m.layer, self._dtype) for m in maps.layers if m.moe_ordinal is not None}
        self._world, self._rank = maps.world_size, maps.rank

    def leave(self) -> None:
        self._layers = {}

    def exchange(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        if layer not in self._layers:  # outside of a step: vLLM tries its model
            return torch.zeros(x.shape, dtype=torch.float32)
        here = self._layers[layer]
        self._count(here.ordinal, ids)
        chosen = self._choose(here, ids.long())
        sent, rows_of = [], []
        for rank in range(self._world):
            there = here.has[rank][chosen]  # [rows, k]
            rows = there.any(1).nonzero().flatten()
            rows_of.append(rows)
            sent.append(_pack(x[rows], torch.where(there[rows], chosen[rows], -1), weights[rows]) if len(rows) else b"")
        asked = self._swap(2 * here.ordinal + 1 + _DISPATCH, sent)
        results = self._swap(2 * here.ordinal + 1 + _COMBINE, self._compute(here, asked, x.shape[1], x.dtype))
        y = torch.zeros(x.shape, dtype=torch.float32)
        for rows, result in zip(rows_of, results, strict=True):  # in order of ranks: sums are the same each time
            if len(rows):
                y.index_add_(0, rows, torch.frombuffer(result, dtype=torch.float32).view(len(rows), -1))
        return y

    def _choose(self, here: _Layer, ids: torch.Tensor) -> torch.Tensor:
        """Of several alternatives each row takes one in turn."""
        if here.copies == 1:
            return ids
        turns = torch.arange(ids.numel()).view(ids.shape) + self._turn
        self._turn += ids.numel()
        return ids * here.copies + turns % here.replicas[ids]

    def _compute(self, here: _Layer, asked: Sequence[memoryview], hidden: int, dtype: torch.dtype) -> list[bytes]:
        """What all ranks ask of the pieces here, at once."""
        parts = [_unpack(message, hidden, dtype) for message in asked]
        some = [part for part in parts if part is not None]
        if not some:
            return [b""] * len(asked)
        x, ids, weights = (torch.cat(column).contiguous() for column in zip(*some, strict=True))
        y = torch.zeros(len(x), hidden, dtype=torch.float32)
        self._operator.add(here.table, x.float(), ids, weights, y)
        rows, done = torch.bincount((ids[ids >= 0] // here.copies).long()), 0
        for expert in rows.nonzero().flatten().tolist():
            self._kit.client.count_executed(here.ordinal, expert, int(rows[expert]))
        out = []
        for part in parts:
            count = 0 if part is None else len(part[0])
            out.append(y[done : done + count].numpy().tobytes())
            done += count
        return out

    def _count(self, ordinal: int, ids: torch.Tensor) -> None:
        counts = torch.bincount(ids.flatten().long())
        for expert in counts.nonzero().flatten().tolist():
            self._kit.client.count(ordinal, expert, int(counts[expert]))

    def _swap(self, sequence: int, messages: Sequence[bytes]) -> list[memoryview]:
        try:
            return self._kit.exchange(sequence, messages)
        except PeerGone as error:
            raise BrokenStep(str(error)) from error


def _pack(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> bytes:
    raw = x.contiguous().view(torch.uint8).numpy().tobytes()
    return b"".join((_HEAD.pack(*ids.shape), raw, ids.int().numpy().tobytes(), weights.float().numpy().tobytes()))


def _unpack(message: memoryview, hidden: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """x, ids and weights; None: the rank wants nothing. ValueError: a message of another size than it says."""
    if len(message) == 0:
        return None
    rows, k = _HEAD.unpack_from(message)
    sizes = (rows * hidden * dtype.itemsize, rows * k * 4, rows * k * 4)
    if len(message) != _HEAD.size + sum(sizes):
        raise ValueError(f"a message of {len(message)} bytes for {rows} rows of {hidden} and {k} experts each")
    begin = _HEAD.size
    x = torch.frombuffer(message, dtype=dtype, offset=begin, count=rows * hidden).view(rows, hidden)
    ids = torch.frombuffer(message, dtype=torch.int32, offset=begin + sizes[0], count=rows * k).view(rows, k)
    weights = torch.frombuffer(message, dtype=torch.float32, offset=begin + sizes[0] + sizes[1], count=rows * k).view(rows, k)
    return x, ids, weights
