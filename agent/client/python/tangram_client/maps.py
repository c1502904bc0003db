"""The model, layouts and events as dataclasses: copies of the library's structs, but for the memory."""

from __future__ import annotations

import ctypes
import enum
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import _abi
from .views import DType


class SlabFormat(enum.IntFlag):
    """How pieces lie in their slabs."""

    GRANULE_MAJOR = 1
    ROW_MAJOR = 2


@dataclass(frozen=True, slots=True)
class Model:
    """What stays for the life of a client."""

    world: str
    member: str
    config_json: bytes
    layers: int
    moe_layers: int
    hidden: int
    moe_inner: int
    experts: int
    top_k: int
    query_heads: int
    kv_heads: int
    head_dim: int
    granule_rows: int
    granules: int
    granule_bytes: int
    expert_tail_bytes: int
    dtype: DType
    banks: int
    kv_bytes: int
    dense_bytes: int
    slab_format: SlabFormat
    kv_head_token_bytes: int


class Piece(NamedTuple):
    """A run of granules of an expert on one rank. `address` is 0 unless the rank is mine and the layout in force."""

    rank: int
    granule_start: int
    granule_count: int
    address: int


@dataclass(frozen=True, slots=True)
class Expert:
    """`alternatives` that each hold every granule, in position order."""

    alternatives: tuple[tuple[Piece, ...], ...]


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Ranks that share a request's heads: position p has query heads [bounds[p], bounds[p + 1])."""

    ranks: tuple[int, ...]
    query_head_bounds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LayerMap:
    """One model layer. Without experts `moe_ordinal` is None and `experts` empty."""

    layer: int
    moe_ordinal: int | None
    experts: tuple[Expert, ...]
    attention: tuple[AttentionGroup, ...]


@dataclass(frozen=True, slots=True)
class Maps:
    """A layout. `rank` is mine, None for one that is no member; the other lists are in order of rank."""

    epoch: int
    hash: bytes
    rank: int | None
    members: tuple[str, ...]
    mesh: tuple[str, ...]
    frontends: tuple[str, ...]
    pods: tuple[str, ...]
    layers: tuple[LayerMap, ...]

    @property
    def world_size(self) -> int:
        return len(self.members)


class EventKind(enum.IntEnum):
    """What the agent wants."""

    PREPARE = 1  # build the communicator of `target`, then Client.prepared
    ABORT = 2  # the attempt is over: drop what was built for it
    FLIPPED = 3  # flipped by the agents: Client.maps is new


@dataclass(frozen=True, slots=True)
class Event:
    """`target` is the layout of a PREPARE (no piece has an address yet) or of a FLIPPED."""

    kind: EventKind
    attempt: int
    target_epoch: int
    joining: bool
    leaving: bool
    repair: bool
    target: Maps | None


def text(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="replace")


def model_of(raw: Any) -> Model:
    """Of a _abi.Model. What an older library did not know is 0."""
    size = min(raw.struct_size, ctypes.sizeof(_abi.Model))
    known = _abi.Model()
    ctypes.memmove(ctypes.addressof(known), ctypes.addressof(raw), size)
    numbers = (
        "layers moe_layers hidden moe_inner experts top_k query_heads kv_heads head_dim granule_rows granules "
        "granule_bytes expert_tail_bytes banks kv_bytes dense_bytes kv_head_token_bytes"
    )
    return Model(
        world=text(known.world),
        member=text(known.member),
        config_json=ctypes.string_at(known.config_json, known.config_json_size),
        dtype=DType(known.dtype),
        slab_format=SlabFormat(known.slab_format),
        **{name: getattr(known, name) for name in numbers.split()},
    )


def maps_of(raw: Any, experts: int, layers: int) -> Maps:
    """Of a _abi.Maps of a model with so many experts in a layer and so many layers."""
    world = range(raw.world_size)
    return Maps(
        epoch=raw.epoch,
        hash=bytes(raw.hash),
        rank=raw.rank if raw.rank >= 0 else None,
        members=tuple(text(raw.members[r]) for r in world),
        mesh=tuple(text(raw.mesh[r]) for r in world),
        frontends=tuple(text(raw.frontends[r]) for r in world),
        pods=tuple(text(raw.pods[r]) for r in world),
        layers=tuple(_layer(raw, layer, experts) for layer in _abi.array_at(_abi.LayerMap, raw.layers, layers, raw.layer_size)),
    )


def _layer(maps: Any, raw: Any, experts: int) -> LayerMap:
    groups = _abi.array_at(_abi.AttentionGroup, raw.attention, raw.attention_groups, maps.group_size)
    return LayerMap(
        layer=raw.layer,
        moe_ordinal=raw.moe_ordinal if raw.moe_ordinal >= 0 else None,
        experts=tuple(_expert(maps, e) for e in _abi.array_at(_abi.Expert, raw.experts, experts, maps.expert_size)),
        attention=tuple(AttentionGroup(tuple(g.ranks[: g.size]), tuple(g.query_head_bounds[: g.size + 1])) for g in groups),
    )


def _expert(maps: Any, raw: Any) -> Expert:
    pieces = [
        Piece(p.rank, p.granule_start, p.granule_count, p.data or 0)
        for p in _abi.array_at(_abi.Piece, raw.pieces, raw.replicas * raw.shards, maps.piece_size)
    ]
    return Expert(tuple(tuple(pieces[a : a + raw.shards]) for a in range(0, len(pieces), raw.shards or 1)))
