"""The model, layouts and events as dataclasses: copies of the library's structs, except for the memory."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

from . import _abi
from .views import DType


class SlabFormat(enum.IntFlag):
    """The order of a piece's bytes in its slab."""

    GRANULE_MAJOR = 1
    ROW_MAJOR = 2


class Section(NamedTuple):
    """A part of a granule. Of each section, a row-major piece of n granules has `lines` lines of n * `bytes` bytes."""

    lines: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Model:
    """Constant for the life of a client."""

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
    sections: tuple[Section, ...]
    """In order; empty unless slabs are row-major."""
    platform: str
    """Whose memory weights and KV are: host or cuda (client.h); empty if the library is older than that."""
    page_bytes: int


class Piece(NamedTuple):
    """A run of granules of an expert on one rank. `address` is 0 unless the rank is mine and the layout active."""

    rank: int
    granule_start: int
    granule_count: int
    address: int


@dataclass(frozen=True, slots=True)
class Expert:
    """`alternatives` (replicas) that each hold every granule, in position order."""

    alternatives: tuple[tuple[Piece, ...], ...]


class Experts(Sequence[Expert]):
    """The experts of a layer by number.

    A copy of the library's memory. An expert is made on access, so that a flip of 58 x 256 experts costs no step.
    """

    __slots__ = ("_experts", "_first", "_pieces", "_sizes")

    def __init__(self, experts: bytes, expert_size: int, pieces: bytes, first: int, piece_size: int) -> None:
        """`pieces`: of all experts, one after another in their order; their original address is `first`."""
        self._experts, self._pieces, self._first, self._sizes = experts, pieces, first, (expert_size, piece_size)

    def __len__(self) -> int:
        return len(self._experts) // self._sizes[0] if self._experts else 0

    @overload
    def __getitem__(self, index: int) -> Expert: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Expert, ...]: ...

    def __getitem__(self, index: int | slice) -> Expert | tuple[Expert, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        expert_size, piece_size = self._sizes
        raw = _abi.Expert.from_buffer_copy(self._experts, range(len(self))[index] * expert_size)
        at = (raw.pieces or 0) - self._first
        pieces = []
        for i in range(raw.replicas * raw.shards):
            p = _abi.Piece.from_buffer_copy(self._pieces, at + i * piece_size)
            pieces.append(Piece(p.rank, p.granule_start, p.granule_count, p.data or 0))
        return Expert(tuple(tuple(pieces[a : a + raw.shards]) for a in range(0, len(pieces), raw.shards or 1)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


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
    experts: Sequence[Expert]
    attention: tuple[AttentionGroup, ...]


@dataclass(frozen=True, slots=True)
class Maps:
    """A layout. `rank` is mine, None for a non-member; the other lists are in order of rank."""

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
    """The kind of an event."""

    PREPARE = 1  # build the communicator of `target`, then Client.prepared
    ABORT = 2  # the attempt has ended: drop its communicator
    FLIPPED = 3  # the agents flipped: Client.maps is new


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
    pause_steps: bool  # compute no step until the attempt has ended


def text(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="replace")


def model_of(raw: Any) -> Model:
    """The Model of a _abi.Model. Members that an older library lacks are 0."""
    size = min(raw.struct_size, ctypes.sizeof(_abi.Model))
    known = _abi.Model()
    ctypes.memmove(ctypes.addressof(known), ctypes.addressof(raw), size)
    numbers = (
        "layers moe_layers hidden moe_inner experts top_k query_heads kv_heads head_dim granule_rows granules "
        "granule_bytes expert_tail_bytes banks kv_bytes dense_bytes kv_head_token_bytes page_bytes"
    )
    return Model(
        world=text(known.world),
        member=text(known.member),
        platform=text(known.platform),
        config_json=ctypes.string_at(known.config_json, known.config_json_size),
        dtype=DType(known.dtype),
        slab_format=SlabFormat(known.slab_format),
        sections=tuple(Section(s.lines, s.bytes) for s in _abi.array_at(_abi.Section, known.sections, known.section_count, known.section_size)),
        **{name: getattr(known, name) for name in numbers.split()},
    )


def maps_of(raw: Any, experts: int, layers: int) -> Maps:
    """The Maps of a _abi.Maps, for a model with this many experts per layer and this many layers."""
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
        experts=_experts(maps, raw, experts),
        attention=tuple(AttentionGroup(tuple(g.ranks[: g.size]), tuple(g.query_head_bounds[: g.size + 1])) for g in groups),
    )


def _experts(maps: Any, layer: Any, count: int) -> Experts:
    if not layer.experts or count == 0:
        return Experts(b"", maps.expert_size, b"", 0, maps.piece_size)
    raw = ctypes.string_at(layer.experts, count * maps.expert_size)
    first = _abi.Expert.from_buffer_copy(raw).pieces or 0
    last = _abi.Expert.from_buffer_copy(raw, (count - 1) * maps.expert_size)
    end = (last.pieces or 0) + last.replicas * last.shards * maps.piece_size
    return Experts(raw, maps.expert_size, ctypes.string_at(first, end - first), first, maps.piece_size)
