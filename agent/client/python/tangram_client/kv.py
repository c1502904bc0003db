"""The KV plan (tangram/kv_plan.h): a pure function of a manifest that all ranks gathered."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from . import _abi
from .maps import AttentionGroup, text

Group = AttentionGroup


@dataclass(frozen=True, slots=True)
class Request:
    """A request with `length` positions of KV. `blocks` of its home, in position order, at least enough for the length."""

    id: str
    home: int  # old rank
    length: int
    reserved: int  # most positions it may come to
    blocks: Sequence[int]


@dataclass(frozen=True, slots=True)
class HeldBlock:
    """The pages of a block on one rank: by layer, then by KV head that the rank holds in the home's group."""

    home: int
    block: int
    pages: Sequence[int]


@dataclass(frozen=True, slots=True)
class RankState:
    """A rank's pages, and the blocks that it holds."""

    total_pages: int
    free_pages: int
    blocks: Sequence[HeldBlock]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a plan is made from. Groups are by layer; old and new ranks have different numbers."""

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
    joined_pages: Sequence[int] = field(default=())  # by new rank: total pages of one that joins, else 0


class PageMove(NamedTuple):
    """`tokens` positions of a page of an old rank, to a page that the target takes from its free list."""

    source_rank: int
    source_page: int
    layer: int
    kv_head: int
    home: int  # new
    block: int  # new
    tokens: int


class Kept(NamedTuple):
    """A page that stays, perhaps under another name."""

    page: int
    layer: int
    kv_head: int
    home: int  # new
    block: int  # new
    tokens: int


@dataclass(frozen=True, slots=True)
class RankPlan:
    """Of one new rank. Moves and kept pages are ordered by (home, block, layer, kv_head)."""

    moves: tuple[PageMove, ...]
    kept: tuple[Kept, ...]
    freed: tuple[int, ...]  # to give back after the flip


@dataclass(frozen=True, slots=True)
class Placement:
    """A request's new home, and its blocks there."""

    id: str
    home: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Requests in the order of the manifest, ranks by new number."""

    requests: tuple[Placement, ...]
    ranks: tuple[RankPlan, ...]
    next_block: tuple[int, ...]  # by new rank: no block of this home has this id or a higher one
    moved_bytes: int
    local_bytes: int
    requests_moved: int


def _numbers(values: Sequence[int]) -> Any:
    return (ctypes.c_uint32 * len(values))(*values)


def _layers(layers: Sequence[Sequence[Group]]) -> Any:
    out = []
    for layer in layers:
        groups = [_abi.AttentionGroup(len(g.ranks), _numbers(g.ranks), _numbers(g.query_head_bounds)) for g in layer]
        out.append(_abi.KvLayer(len(groups), (_abi.AttentionGroup * len(groups))(*groups)))
    return (_abi.KvLayer * len(out))(*out)


def _raw(manifest: Manifest) -> _abi.KvManifest:
    # ctypes keeps alive what a pointer of a struct was set from.
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
    ranks = []
    for rank in manifest.ranks:
        blocks = [_abi.KvBlock(b.home, b.block, len(b.pages), _numbers(b.pages)) for b in rank.blocks]
        ranks.append(_abi.KvRank(rank.total_pages, rank.free_pages, len(blocks), (_abi.KvBlock * len(blocks))(*blocks)))
    raw.ranks = (_abi.KvRank * len(ranks))(*ranks)
    raw.rank_size, raw.block_size = ctypes.sizeof(_abi.KvRank), ctypes.sizeof(_abi.KvBlock)
    if manifest.joined_pages:
        raw.joined_pages = _numbers(manifest.joined_pages)
    requests = [_abi.KvRequest(r.id.encode(), r.home, r.length, r.reserved, len(r.blocks), _numbers(r.blocks)) for r in manifest.requests]
    raw.requests = len(requests)
    raw.request = (_abi.KvRequest * len(requests))(*requests)
    raw.request_size = ctypes.sizeof(_abi.KvRequest)
    return raw


def _rank_plan(planned: Any, raw: Any) -> RankPlan:
    moves = _abi.array_at(_abi.KvPageMove, raw.move, raw.moves, planned.move_size)
    kept = _abi.array_at(_abi.KvKept, raw.kept, raw.kept_pages, planned.kept_size)
    return RankPlan(
        tuple(PageMove(*(getattr(m, name) for name in PageMove._fields)) for m in moves),
        tuple(Kept(*(getattr(k, name) for name in Kept._fields)) for k in kept),
        tuple(raw.freed[: raw.freed_pages]),
    )


def kv_plan(manifest: Manifest) -> Plan:
    """New homes, moves, kept and freed pages: the same on every rank that has the same manifest.

    NoRoomError: it does not fit, and all ranks find so; InvalidError: the manifest contradicts itself.
    """
    raw, error = _raw(manifest), _abi.sized(_abi.Error)
    out = ctypes.POINTER(_abi.KvPlanned)()
    _abi.check(_abi.lib.tg_kv_plan(ctypes.byref(raw), ctypes.byref(out), ctypes.byref(error)), error)
    try:
        planned = out.contents
        homes = _abi.array_at(_abi.KvHome, planned.request, planned.requests, planned.request_size)
        ranks = _abi.array_at(_abi.KvRankPlan, planned.ranks, planned.new_ranks, planned.rank_size)
        return Plan(
            tuple(Placement(text(h.id), h.home, tuple(h.blocks[: h.block_count])) for h in homes),
            tuple(_rank_plan(planned, r) for r in ranks),
            tuple(planned.next_block[: planned.new_ranks]),
            planned.moved_bytes,
            planned.local_bytes,
            planned.requests_moved,
        )
    finally:
        _abi.lib.tg_kv_plan_free(out)


def page_ranges(block_tokens: int, head_token_bytes: int, tokens: int) -> list[tuple[int, int]]:
    """(offset, length) in a page of what holds its first `tokens` positions: K, then V from the middle; one range if full.

    >>> page_ranges(16, 64, 16), page_ranges(16, 64, 3), page_ranges(16, 64, 0)
    ([(0, 1024)], [(0, 96), (512, 96)], [])
    """
    if tokens == block_tokens:
        return [(0, block_tokens * head_token_bytes)]
    half, middle = tokens * head_token_bytes // 2, block_tokens * head_token_bytes // 2
    return [(0, half), (middle, half)] if tokens else []
