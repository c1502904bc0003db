"""The KV plan (tangram/kv_plan.h): a pure function of a manifest that all ranks gathered."""

from __future__ import annotations

import ctypes
import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, overload

from . import _abi
from .maps import AttentionGroup, text

Group = AttentionGroup


@dataclass(frozen=True, slots=True)
class Request:
    """A request with `length` positions of KV. `blocks` of its home, in position order, at least enough for the
    length."""

    id: str
    home: int  # old rank
    length: int
    reserved: int  # maximum positions
    blocks: Sequence[int]


class Strip(NamedTuple):
    """Pages of one KV head of a block on one rank, for `layers` layers from `layer` on: `page`, each next one `stride` further."""

    home: int
    block: int
    kv_head: int
    layer: int
    layers: int
    page: int
    stride: int


@dataclass(frozen=True, slots=True)
class RankState:
    """A rank's pages, and the strips in them.

    `strips` ascend by (home, block, kv_head, layer). They may also be a table: any object with the buffer protocol that
    has a row of seven 32-bit numbers for each (an array of shape (n, 7), or bytes from another rank). A table needs no
    work per row.
    """

    total_pages: int
    free_pages: int
    strips: Sequence[Strip] | bytes | memoryview


@dataclass(frozen=True, slots=True)
class Manifest:
    """The input of a plan. Groups are by layer; old and new ranks have different numbers."""

    query_heads: int
    kv_heads: int
    block_tokens: int
    head_token_bytes: int  # K and V of one token of one KV head
    old_groups: Sequence[Sequence[Group]]
    new_groups: Sequence[Sequence[Group]]
    new_of_old: Sequence[int]  # -1: leaves
    new_ranks: int
    requests: Sequence[Request]
    ranks: Sequence[RankState]  # by old rank
    rank: int | None = None  # rank of the requested part, new number; None: a leaver, which frees all its pages
    joined_pages: Sequence[int] = field(default=())  # by new rank: total pages of one that joins, else 0


class StripMove(NamedTuple):
    """`tokens` positions in each page of a strip of an old rank, to pages that the target takes from its free list."""

    home: int  # new
    block: int  # new
    kv_head: int
    layer: int
    layers: int
    source_rank: int
    source_page: int
    source_stride: int
    tokens: int


class Kept(NamedTuple):
    """Pages that stay, perhaps under another name."""

    home: int  # new
    block: int  # new
    kv_head: int
    layer: int
    layers: int
    page: int
    stride: int
    tokens: int


Row = TypeVar("Row", Strip, StripMove, Kept)


class Rows(Sequence[Row]):
    """Rows of numbers, each made on access; `table` is all of them, of shape (rows, fields)."""

    def __init__(self, kind: type[Row], data: bytes) -> None:
        self._kind, fields = kind, len(kind._fields)
        count = len(data) // (4 * fields)
        # A table without rows has no shape that a memoryview could be cast to.
        self.table = memoryview(data).cast("I", (count, fields)) if count else memoryview(b"").cast("I")
        self._flat, self._fields, self._count = memoryview(data).cast("I"), fields, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        at = range(self._count)[index] * self._fields
        return self._kind(*self._flat[at : at + self._fields])


@dataclass(frozen=True, slots=True)
class Part:
    """The part of one rank. Moves and kept strips are ordered by (home, block, kv_head, layer)."""

    moves: Rows[StripMove]
    kept: Rows[Kept]
    freed: Rows[Strip]  # under their old names, to free after the flip
    moved_bytes: int
    local_bytes: int


@dataclass(frozen=True, slots=True)
class Placement:
    """A request's new home, and its blocks there."""

    id: str
    home: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Requests in the order of the manifest, the same on all ranks, and the part of the manifest's rank."""

    requests: tuple[Placement, ...]
    next_block: tuple[int, ...]  # by new rank: no block of this home has this id or a higher one
    requests_moved: int
    part: Part


def _numbers(values: Sequence[int]) -> Any:
    return (ctypes.c_uint32 * len(values))(*values)


def _layers(layers: Sequence[Sequence[Group]]) -> Any:
    out = []
    for layer in layers:
        groups = [_abi.AttentionGroup(len(g.ranks), _numbers(g.ranks), _numbers(g.query_head_bounds)) for g in layer]
        out.append(_abi.KvLayer(len(groups), (_abi.AttentionGroup * len(groups))(*groups)))
    return (_abi.KvLayer * len(out))(*out)


_STRIP = 4 * len(Strip._fields)


def _table(strips: Sequence[Strip] | bytes | memoryview) -> bytes:
    """The rows as the library reads them. ValueError: the bytes are not whole rows."""
    if isinstance(strips, Sequence) and not isinstance(strips, bytes | bytearray | memoryview):
        return array("I", itertools.chain.from_iterable(strips)).tobytes()
    table = memoryview(strips).tobytes()
    if len(table) % _STRIP:
        raise ValueError(f"a table of strips has {len(table)} bytes, want a multiple of {_STRIP}")
    return table


def _raw(manifest: Manifest) -> tuple[_abi.KvManifest, list[bytes]]:
    # ctypes keeps alive the objects that a struct's pointers were set from, except for the tables' addresses.
    raw = _abi.sized(_abi.KvManifest)
    for name in ("query_heads", "kv_heads", "block_tokens", "head_token_bytes", "new_ranks"):
        setattr(raw, name, getattr(manifest, name))
    if len(manifest.old_groups) != len(manifest.new_groups):
        raise ValueError("old_groups and new_groups must have the same layers")
    if len(manifest.new_of_old) != len(manifest.ranks):
        raise ValueError("new_of_old and ranks must have the same old ranks")
    if manifest.joined_pages and len(manifest.joined_pages) != manifest.new_ranks:
        raise ValueError("joined_pages must have an entry per new rank, or none")
    raw.layers = len(manifest.old_groups)
    raw.old_groups, raw.new_groups = _layers(manifest.old_groups), _layers(manifest.new_groups)
    raw.layer_size, raw.group_size = ctypes.sizeof(_abi.KvLayer), ctypes.sizeof(_abi.AttentionGroup)
    raw.old_ranks = len(manifest.ranks)
    raw.new_of_old = (ctypes.c_int32 * raw.old_ranks)(*manifest.new_of_old)
    tables = [_table(rank.strips) for rank in manifest.ranks]
    ranks = [
        _abi.KvRank(r.total_pages, r.free_pages, len(t) // _STRIP, ctypes.cast(ctypes.c_char_p(t), ctypes.c_void_p))
        for r, t in zip(manifest.ranks, tables, strict=True)
    ]
    raw.ranks = (_abi.KvRank * len(ranks))(*ranks)
    raw.rank_size, raw.strip_size = ctypes.sizeof(_abi.KvRank), _STRIP
    raw.rank = -1 if manifest.rank is None else manifest.rank
    if manifest.joined_pages:
        raw.joined_pages = _numbers(manifest.joined_pages)
    requests = [_abi.KvRequest(r.id.encode(), r.home, r.length, r.reserved, len(r.blocks), _numbers(r.blocks)) for r in manifest.requests]
    raw.requests = len(requests)
    raw.request = (_abi.KvRequest * len(requests))(*requests)
    raw.request_size = ctypes.sizeof(_abi.KvRequest)
    return raw, tables


def _rows(kind: type[Row], first: int | None, count: int, size: int) -> Rows[Row]:
    known = 4 * len(kind._fields)
    if size == known:
        return Rows(kind, ctypes.string_at(first, count * size) if count else b"")
    return Rows(kind, b"".join(ctypes.string_at((first or 0) + i * size, known) for i in range(count)))


def kv_plan(manifest: Manifest) -> Plan:
    """New homes and names, the same on every rank with the same manifest, and the part of its `rank`.

    NoRoomError: it does not fit, at any rank; InvalidError: the manifest contradicts itself.
    """
    (raw, tables), error = _raw(manifest), _abi.sized(_abi.Error)
    out = ctypes.POINTER(_abi.KvPlanned)()
    _abi.check(_abi.lib.tg_kv_plan(ctypes.byref(raw), ctypes.byref(out), ctypes.byref(error)), error)
    try:
        planned = out.contents
        homes = _abi.array_at(_abi.KvHome, planned.request, planned.requests, planned.request_size)
        return Plan(
            tuple(Placement(text(h.id), h.home, tuple(h.blocks[: h.block_count])) for h in homes),
            tuple(planned.next_block[: planned.new_ranks]),
            planned.requests_moved,
            Part(
                _rows(StripMove, planned.move, planned.moves, planned.move_size),
                _rows(Kept, planned.kept, planned.kept_strips, planned.kept_size),
                _rows(Strip, planned.freed, planned.freed_strips, planned.freed_size),
                planned.moved_bytes,
                planned.local_bytes,
            ),
        )
    finally:
        _abi.lib.tg_kv_plan_free(out)
        del tables  # must live until here
