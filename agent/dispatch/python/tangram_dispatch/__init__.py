"""Dispatch and combine of experts' rows, which survive a lost rank, with engines' usual names (docs/dispatch.md).

    buffer = Buffer(Member("rank-0", local="unix:/run/world/rank-0", node="n1"), hidden=7168, top_k=8, experts=256, most_tokens=128)
    buffer.prepare(members)
    buffer.update_ep_member(epoch, members, placement)
    sent = buffer.dispatch(layer, x, topk_idx, topk_weights, return_recv_hook=True)
    ...                                       # other work
    sent.hook()                               # now sent.packed() is valid
    y, event, hook = buffer.combine(sent.handle, outputs)

Host memory; one thread per buffer. x, topk_idx, topk_weights and outputs are numpy arrays (BF16 as uint16) or torch
tensors. They are not copied, so do not change them until the dispatch, or the combine, has completed.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
from typing import Any, Callable, Iterable, Sequence

from . import _abi, _tensors
from ._abi import DispatchError

__all__ = ["Buffer", "DispatchError", "Dispatched", "Event", "Found", "Handle", "Member", "Piece", "even_placement"]

_ELEMENTS = {"f32": 1, "bf16": 2, "fp8": 3, "fixed": 4}
_CAUSES = {1: "gone", 2: "silent", 3: "stuck", 4: "hostile", 5: "gave up", 6: "told"}
_DOINGS = {2: "dispatch", 3: "combine"}
_OF_SUMS = {"f32": "f32", "bf16": "bf16", "fixed": "i64"}


@dataclasses.dataclass(frozen=True)
class Member:
    """A rank during its lifetime. `local` (unix:PATH) and `node`: shared memory; `endpoint` (host:port): TCP."""

    name: str
    generation: int = 1
    node: str = ""
    local: str = ""
    endpoint: str = ""
    pod: str = ""


@dataclasses.dataclass(frozen=True)
class Piece:
    """A run of granules of an alternative (replica) of an expert, on one rank."""

    layer: int
    expert: int
    alternative: int
    rank: int
    granule_start: int = 0
    granule_count: int = 1


def even_placement(experts: int, ranks: int, layers: int = 1) -> list[Piece]:
    """Places each expert whole on one rank, in order, as evenly as possible.

    >>> [piece.rank for piece in even_placement(5, 2)]
    [0, 0, 0, 1, 1]
    """
    return [Piece(layer, expert, 0, expert * ranks // experts) for layer in range(layers) for expert in range(experts)]


@dataclasses.dataclass(frozen=True)
class Found:
    """Why a rank is masked: gone, silent, stuck, hostile, gave up, told. Where it was missed: dispatch, combine, or
    None between pairs; and in which layer, counting only layers with experts."""

    cause: str
    doing: str | None
    layer: int


class Event:
    """A dispatch or combine in progress."""

    def __init__(self, go_on: Callable[[bool], bool]) -> None:
        self._go_on = go_on
        self._done = False

    def query(self) -> bool:
        """Makes progress without waiting; returns whether it has completed."""
        self._done = self._done or self._go_on(False)
        return self._done

    def wait(self) -> None:
        if not self._done:
            self._go_on(True)
            self._done = True

    current_stream_wait = wait  # there is no stream on a host


@dataclasses.dataclass
class Handle:
    """Identifies one dispatch, for its one combine."""

    pair: _abi.Handle
    count: int
    like: Any
    packed: _abi.Packed


@dataclasses.dataclass
class Dispatched:
    """The result of Buffer.dispatch. Received rows are valid once the event or the hook has completed."""

    buffer: "Buffer"
    handle: Handle
    event: Event
    hook: Callable[[], None] | None

    def packed(self) -> tuple[Any, Any, Any, Any]:
        """(x [rows, hidden], scales [rows, ceil(hidden / 128)] or None, experts [local], counts [local]): rows by local expert."""
        return self.buffer._packed(self.handle)


class Buffer:
    """One member's end. `x`, `wire` and `sums` are elements: f32, bf16, fp8 (only wire), fixed (only sums)."""

    def __init__(self, member: Member, *, hidden: int, top_k: int, experts: int, most_tokens: int, x: str = "bf16", wire: str | None = None,
                 sums: str = "bf16", slots: int = 0, slot_bytes: int = 0, timeout_us: int = 10_000_000, packed_capacity: int = 0,
                 world: str = "", tls: tuple[str, str, str] | None = None) -> None:
        self.x, self.wire, self.sums = x, wire or x, sums
        self.hidden, self.top_k, self._most = hidden, top_k, most_tokens
        self._options = _options(hidden, top_k, experts, most_tokens, x, self.wire, sums)
        self._options.slots, self._options.slot_bytes = slots, slot_bytes
        self._options.timeout_us, self._options.packed_capacity = timeout_us, packed_capacity
        if tls is not None:
            self._options.world = os.fsencode(world)
            self._options.tls_ca, self._options.tls_cert, self._options.tls_key = map(os.fsencode, tls)
        self._buffer = ctypes.c_void_p()
        _abi.call("tgd_open", ctypes.byref(self._options), ctypes.byref(_member(member)), ctypes.byref(self._buffer))
        self.member = dataclasses.replace(member, endpoint=_abi.lib.tgd_endpoint(self._buffer).decode())

    def close(self) -> None:
        buffer, self._buffer = self._buffer, ctypes.c_void_p()
        if buffer:
            _abi.lib.tgd_close(buffer)

    def __enter__(self) -> "Buffer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def get_buffer_size_hint(most_tokens: int, hidden: int, ranks: int, experts: int, *, top_k: int, x: str = "bf16", wire: str | None = None,
                             sums: str = "bf16") -> int:
        """Bytes that a member needs for its links and its packed rows, with whole messages and the worst routing."""
        links, packed = ctypes.c_uint64(), ctypes.c_uint64()
        options = _options(hidden, top_k, experts, most_tokens, x, wire or x, sums)
        _abi.call("tgd_size_hint", ctypes.byref(options), ranks, -(-experts // ranks), ctypes.byref(links), ctypes.byref(packed))
        return links.value + packed.value

    def prepare(self, members: Iterable[Member], timeout_ms: int = 30_000) -> None:
        """Creates missing connections, while steps run; all members of the next world call it."""
        given = _members(members)
        _abi.call("tgd_prepare", self._buffer, given, len(given), ctypes.sizeof(_abi.Member), timeout_ms)

    def update_ep_member(self, epoch: int, members: Iterable[Member], placement: Sequence[Piece]) -> None:
        """Sets the world, by rank. Members that stay keep their links; open pairs end."""
        given = _members(members)
        pieces = (_abi.Piece * len(placement))(*(_abi.Piece(*dataclasses.astuple(piece)) for piece in placement))
        _abi.call("tgd_update_members", self._buffer, epoch, given, len(given), ctypes.sizeof(_abi.Member), pieces, len(pieces), ctypes.sizeof(_abi.Piece))

    def ended(self, member: Member) -> None:
        """Reports that the process of a former member has ended."""
        _abi.call("tgd_ended", self._buffer, member.name.encode(), member.generation)

    def dispatch(self, layer: int, x: Any, topk_idx: Any, topk_weights: Any, *, async_finish: bool = False, return_recv_hook: bool = False) -> Dispatched:
        """x [tokens, hidden], topk_idx [tokens, top_k] int32, topk_weights float32. Blocks by default."""
        count = int(x.shape[0])
        where = (_tensors.address(x, self.x, (count, self.hidden), "x"), _tensors.address(topk_idx, "i32", (count, self.top_k), "topk_idx"),
                 _tensors.address(topk_weights, "f32", (count, self.top_k), "topk_weights"))
        handle = Handle(_abi.Handle(), count, x, _abi.Packed(struct_size=ctypes.sizeof(_abi.Packed)))
        _abi.call("tgd_send", self._buffer, layer, count, *where, ctypes.byref(handle.pair))
        keep = (x, topk_idx, topk_weights)

        def go_on(wait: bool) -> bool:
            assert keep is not None
            return _abi.call("tgd_receive", self._buffer, ctypes.byref(handle.pair), int(wait), ctypes.byref(handle.packed))

        event = Event(go_on)
        if not (async_finish or return_recv_hook):
            event.wait()
        return Dispatched(self, handle, event, event.wait if return_recv_hook else None)

    def _packed(self, handle: Handle) -> tuple[Any, Any, Any, Any]:
        p, rows = handle.packed, int(handle.packed.rows)
        fp8 = self.wire == "fp8"
        scales = _tensors.view(ctypes.cast(p.scales, ctypes.c_void_p).value or 0, "f32", (rows, -(-self.hidden // 128)), handle.like) if fp8 else None
        local = (p.local,)
        return (_tensors.view(p.x or 0, "u8" if fp8 else self.wire, (rows, self.hidden), handle.like), scales,
                _tensors.view(ctypes.cast(p.experts, ctypes.c_void_p).value or 0, "i32", local, handle.like),
                _tensors.view(ctypes.cast(p.counts, ctypes.c_void_p).value or 0, "i32", local, handle.like))

    def overflow(self, handle: Handle) -> tuple[int, int] | None:
        """(rows received, room), if more rows arrived than fit."""
        return (handle.packed.wanted, handle.packed.rows) if handle.packed.wanted > handle.packed.rows else None

    @property
    def _outputs(self) -> str:
        return "bf16" if self.sums == "bf16" else "f32"

    def get_next_combine_buffer(self, handle: Handle) -> Any:
        """[rows, hidden] memory for the experts' outputs, for combine(handle, zero_copy=True)."""
        where = ctypes.c_void_p()
        _abi.call("tgd_next_combine_buffer", self._buffer, ctypes.byref(handle.pair), ctypes.byref(where))
        return _tensors.view(where.value or 0, self._outputs, (int(handle.packed.rows), self.hidden), handle.like)

    def combine(self, handle: Handle, outputs: Any = None, *, zero_copy: bool = False, out: Any = None, async_finish: bool = False,
                return_recv_hook: bool = False) -> tuple[Any, Event, Callable[[], None] | None]:
        """(y [tokens, hidden] of sums, event, hook); outputs [rows, hidden], BF16 if sums are, else F32."""
        if zero_copy:
            outputs = self.get_next_combine_buffer(handle)
        where = _tensors.address(outputs, self._outputs, (int(handle.packed.rows), self.hidden), "outputs")
        kind = _OF_SUMS[self.sums]
        y = out if out is not None else _tensors.empty(kind, (handle.count, self.hidden), handle.like)
        to = _tensors.address(y, kind, (handle.count, self.hidden), "out")
        _abi.call("tgd_send_back", self._buffer, ctypes.byref(handle.pair), where)
        keep = (outputs, y)

        def go_on(wait: bool) -> bool:
            assert keep is not None
            return _abi.call("tgd_finish", self._buffer, ctypes.byref(handle.pair), int(wait), to)

        event = Event(go_on)
        if not (async_finish or return_recv_hook):
            event.wait()
        return y, event, event.wait if return_recv_hook else None

    def missing(self) -> list[tuple[int, int, int]]:
        """(token, k, expert) of each contribution missing in the last y. A step that lacks one must not be emitted."""
        of = ctypes.POINTER(_abi.Contribution)()
        return [(of[i].row, of[i].k, of[i].expert) for i in range(_abi.lib.tgd_missing(self._buffer, ctypes.byref(of)))]

    @property
    def active_ranks(self) -> list[bool]:
        of = ctypes.POINTER(ctypes.c_uint8)()
        return [of[i] != 0 for i in range(_abi.lib.tgd_active_ranks(self._buffer, ctypes.byref(of)))]

    def cause(self, rank: int) -> str:
        """The reason why a rank is masked, as text."""
        return str(_abi.lib.tgd_cause(self._buffer, rank).decode())

    def found(self, rank: int) -> Found | None:
        """The reason as agents and the operator report it; None: it is not masked."""
        raw = _abi.Missed()
        if not _abi.lib.tgd_found(self._buffer, rank, ctypes.byref(raw)):
            return None
        return Found(_CAUSES[raw.cause], _DOINGS.get(raw.doing), int(raw.layer))

    def mask(self, rank: int, cause: str) -> None:
        """Masks a rank that the caller knows to be lost: this rank no longer waits for it."""
        _abi.call("tgd_mask", self._buffer, rank, cause.encode())

    def path(self, rank: int) -> str:
        """The transport of a rank: shared memory, TCP, here, none."""
        return str(_abi.lib.tgd_path(self._buffer, rank).decode())


def _options(hidden: int, top_k: int, experts: int, most_tokens: int, x: str, wire: str, sums: str) -> _abi.Options:
    return _abi.Options(struct_size=ctypes.sizeof(_abi.Options), hidden=hidden, top_k=top_k, experts=experts, most_tokens=most_tokens,
                        x=_ELEMENTS[x], wire=_ELEMENTS[wire], sums=_ELEMENTS[sums], timeout_us=-1)


def _member(m: Member) -> _abi.Member:
    return _abi.Member(ctypes.sizeof(_abi.Member), m.name.encode(), m.generation, m.node.encode(), os.fsencode(m.local), m.endpoint.encode(), m.pod.encode())


def _members(members: Iterable[Member]) -> Any:
    given = [_member(member) for member in members]
    return (_abi.Member * len(given))(*given)
