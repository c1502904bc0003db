"""The format of an engine's KV in its region, and the byte moves of a plan (tangram/kv_format.h)."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, overload

from . import _abi


class KvElement(enum.IntEnum):
    """The type of K and V."""

    F32 = 1
    F16 = 2
    BF16 = 3
    FP8_E4M3 = 4
    FP8_E5M2 = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class KvFormat:
    """The place of rows of K and V in the region, in bytes, as in `tg_kv_format`.

    >>> latents = KvFormat(layers=2, blocks=10, block_tokens=16, element=KvElement.BF16, key_width=576,
    ...                    token_stride=1152, block_stride=18432, layer_stride=184320)
    >>> latents.page(1, 3, 0), latents.layer_pages
    (13, 10)
    """

    blocks: int
    block_tokens: int
    element: KvElement
    key_width: int  # elements of a row of K, or of a latent
    value_width: int = 0  # of a row of V; 0: latents, which have none
    layers: int = 1  # 1 layer and 1 head: a page may hold any head of any layer
    heads: int = 1
    offset: int = 0
    layer_stride: int = 0
    block_stride: int = 0
    head_stride: int = 0
    token_stride: int = 0
    value_offset: int = 0
    whole_page_bytes: int = 0  # not 0: the order within a page is the engine's own, and whole pages move

    def page(self, layer: int, block: int, head: int) -> int:
        """The plan's page of this head of this block of this layer."""
        return (layer * self.blocks + block) * self.heads + head

    @property
    def layer_pages(self) -> int:
        """The distance between the pages of a block in consecutive layers: the stride of a strip."""
        return self.blocks * self.heads

    def check(self, kv_bytes: int) -> None:
        """InvalidError names the wrong member: rows or pages that overlap, or exceed the region."""
        error = _abi.sized(_abi.Error)
        _abi.check(_abi.lib.tg_kv_format_check(ctypes.byref(_raw(self)), kv_bytes, ctypes.byref(error)), error)


class PageCopy(NamedTuple):
    """`tokens` positions of each of `pages` pages of a rank, into as many of mine; strides as those of strips."""

    source_rank: int
    source_page: int
    source_stride: int
    target_page: int
    target_stride: int
    pages: int  # layers
    tokens: int


class KvMove(NamedTuple):
    """Bytes of another rank's KV region into mine. Ranks are of the layout before the flip."""

    source_rank: int
    source_offset: int
    target_offset: int
    length: int


class ByteMoves(Sequence[KvMove]):
    """The moves for `Client.kv_pull`, each made on access; `bytes` of all of them."""

    def __init__(self, raw: Any, total: int) -> None:
        self.raw, self.bytes = raw, total

    def __len__(self) -> int:
        return len(self.raw)

    @overload
    def __getitem__(self, index: int) -> KvMove: ...
    @overload
    def __getitem__(self, index: slice) -> list[KvMove]: ...
    def __getitem__(self, index: int | slice) -> KvMove | list[KvMove]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        move = self.raw[index]
        return KvMove(move.source_rank, move.source_offset, move.target_offset, move.length)


def _raw(of: KvFormat) -> _abi.KvFormat:
    out = _abi.sized(_abi.KvFormat)
    for field in fields(KvFormat):
        setattr(out, field.name, getattr(of, field.name))
    return out


def kv_moves(sources: Sequence[KvFormat | None], target: KvFormat, copies: Iterable[PageCopy]) -> ByteMoves:
    """The byte moves of all copies, each byte once, merged as far as the formats allow.

    `sources` by old rank; None: no copy comes from it. InvalidError: a copy is not within the pages of a format, or
    rows differ. An engine with many moves passes the copies in parts.
    """
    error, out = _abi.sized(_abi.Error), ctypes.POINTER(_abi.KvByteMoves)()
    table = [_abi.KvPageCopy(*copy) for copy in copies]
    rows = (_abi.KvPageCopy * len(table))(*table)
    formats = [None if s is None else ctypes.pointer(_raw(s)) for s in sources]
    named = (ctypes.POINTER(_abi.KvFormat) * len(formats))(*formats)
    code = _abi.lib.tg_kv_byte_moves_of(
        named, len(formats), ctypes.byref(_raw(target)), rows, len(table), ctypes.sizeof(_abi.KvPageCopy), ctypes.byref(out), ctypes.byref(error)
    )
    _abi.check(code, error)
    try:
        told = out.contents
        moves = list(_abi.array_at(_abi.KvMove, told.move, told.moves, told.move_size))
        return ByteMoves((_abi.KvMove * len(moves))(*moves), told.bytes)
    finally:
        _abi.lib.tg_kv_byte_moves_free(out)
