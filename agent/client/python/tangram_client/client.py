"""A client: the connection of one rank's engine to its agent."""

from __future__ import annotations

import ctypes
import dataclasses
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from . import _abi
from .errors import InvalidError
from .kv_format import ByteMoves, KvMove
from .maps import Event, EventKind, Maps, Model, Piece, SlabFormat, maps_of, model_of, text
from .views import DType, Exports, View, element_bytes


class GateVote(NamedTuple):
    """The vote of a step: 16 bytes that engines send to each other."""

    epoch: int
    hash: int


@dataclasses.dataclass(slots=True)
class EngineStats:
    """An engine's figures in the agent's status."""

    kv_pages: int = 0
    kv_free_pages: int = 0
    kv_reserved_tokens: int = 0
    running: int = 0
    waiting: int = 0


def setting_lines(settings: Mapping[str, object] | None) -> bytes | None:
    """In the form of tg_options: one line each."""
    lines = [f"{name}={value}" for name, value in (settings or {}).items()]
    for line in lines:
        if "\n" in line:
            raise InvalidError(f"a setting is one line: {line!r}")
    return "\n".join(lines).encode() or None


def library_version() -> str:
    """The version of libtangram_client.so."""
    return text(_abi.lib.tg_version())


class Client:
    """Made by `attach`. One thread at a time, except for `count`, `count_executed` and `report`.

    A call that waits lets other Python threads run. Calls raise the classes of `tangram_client.errors`.
    """

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle: ctypes.c_void_p | None = handle
        self._model = model_of(_abi.lib.tg_get_model(handle).contents)
        self._exports = Exports(self._model.platform)
        raw = _abi.lib.tg_get_model(handle).contents
        self._kv, self._dense_names = raw.kv or 0, dict(self._tensors())
        self._maps: Maps | None = None

    @classmethod
    def attach(
        cls,
        socket_path: str | os.PathLike[str],
        token: str,
        *,
        device: int = 0,
        mesh_endpoint: str = "",
        frontend: str = "",
        kv_block_tokens: int = 0,
        slab_formats: SlabFormat = SlabFormat.GRANULE_MAJOR,
        even_shards_only: bool = False,
        mixed_layouts: bool = False,
        attention_data_only: bool = False,
        cuda_driver: str = "",
        settings: Mapping[str, object] | None = None,
    ) -> Client:
        """Connects to the agent of this pod and maps KV, and the weights if a layout is active.

        `slab_formats` to `attention_data_only` declare capabilities: the agent rejects layouts beyond them.
        `cuda_driver`: for memory of a GPU, its driver, if it is not the default. `settings`: values that must be the
        same at all engines of a world (engine, version, max_batch_tokens, ...); an engine with others does not join.
        AgainError: not now (the previous engine has not ended, an attempt is in progress); DisconnectedError: no agent
        listens there.
        """
        options, error, out = _abi.sized(_abi.Options), _abi.sized(_abi.Error), ctypes.c_void_p()
        options.socket_path, options.token = os.fsencode(socket_path), token.encode()
        options.device, options.kv_block_tokens = device, kv_block_tokens
        options.mesh_endpoint, options.frontend = mesh_endpoint.encode(), frontend.encode()
        options.even_shards_only, options.mixed_layouts = even_shards_only, mixed_layouts
        options.attention_data_only, options.slab_formats = attention_data_only, int(slab_formats)
        options.cuda_driver = os.fsencode(cuda_driver) or None
        options.settings = setting_lines(settings)
        _abi.check(_abi.lib.tg_attach(ctypes.byref(options), ctypes.byref(out), ctypes.byref(error)), error)
        return cls(out)

    def close(self) -> None:
        """Detaches: the agent takes this engine for gone, and all memory is unmapped.

        BufferError while a view, or an object made from one, is in use: reading it later would end the process.
        """
        if self._handle is None:
            return
        if len(self._exports) > 0:
            raise BufferError(f"{len(self._exports)} views of the agent's memory are still in use")
        handle, self._handle = self._handle, None
        _abi.lib.tg_detach(handle)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # A propagating exception holds frames, and with them views: the process ends with its memory mapped.
        if kind is None or len(self._exports) == 0:
            self.close()

    @property
    def handle(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise InvalidError("the client is closed")
        return self._handle

    def _call(self, function: Any, *arguments: Any) -> None:
        error = _abi.sized(_abi.Error)
        _abi.check(function(self.handle, *arguments, ctypes.byref(error)), error)

    # Model and layout.

    @property
    def model(self) -> Model:
        return self._model

    @property
    def maps(self) -> Maps | None:
        """The active layout; None before the first."""
        raw = _abi.lib.tg_maps_current(self.handle)
        if not raw:
            return None
        if self._maps is None or self._maps.epoch != raw.contents.epoch:
            self._maps = maps_of(raw.contents, self._model.experts, self._model.layers)
        return self._maps

    def _tensors(self) -> Iterable[tuple[str, tuple[DType, tuple[int, ...], int]]]:
        first, size = ctypes.c_void_p(), ctypes.c_size_t()
        count = _abi.lib.tg_dense_tensors(self.handle, ctypes.byref(first), ctypes.byref(size))
        for raw in _abi.array_at(_abi.Tensor, first.value, count, size.value):
            yield text(raw.name), (DType(raw.dtype), tuple(raw.shape[: raw.rank]), raw.data)

    @property
    def dense_names(self) -> tuple[str, ...]:
        """The names of all tensors outside the routed experts, as in the checkpoint, in order of name."""
        return tuple(self._dense_names)

    def dense(self, name: str, *, early: bool = False) -> View:
        """A dense tensor, read-only; FP8 as U8. KeyError: unknown name; InvalidError: no layout is active.

        `early`: also before that, for a model made over it in advance. Reading it then ends the process.
        """
        dtype, shape, address = self._dense_names[name]
        if not early and not _abi.lib.tg_maps_current(self.handle):
            raise InvalidError("no layout is active: this rank has no weights yet")
        if dtype == DType.FP8_E4M3_BLOCK128:
            dtype = DType.U8
        return View(self._exports.memory(address, element_bytes(dtype) * math.prod(shape)), dtype, shape, readonly=True)

    def piece(self, piece: Piece) -> View:
        """A piece of mine, read-only, for granule-major slabs: [granules, 3 (gate, up, down), granule_rows, hidden].

        Down is stored by columns. If granules are not plain numbers (scales, biases): U8 of [granules, granule_bytes].
        InvalidError: it is not on this rank, its layout is not active yet, or slabs are row-major (piece_sections).
        """
        m = self._model
        if m.slab_format == SlabFormat.ROW_MAJOR:
            raise InvalidError("granules are interleaved in a slab that is row-major: piece_sections views it")
        self._here(piece)
        memory = self._exports.memory(piece.address, piece.granule_count * m.granule_bytes)
        plain = m.dtype in (DType.F32, DType.BF16)
        if plain and m.granule_bytes == 3 * m.granule_rows * m.hidden * element_bytes(m.dtype):
            return View(memory, m.dtype, (piece.granule_count, 3, m.granule_rows, m.hidden), readonly=True)
        return View(memory, DType.U8, (piece.granule_count, m.granule_bytes), readonly=True)

    def piece_sections(self, piece: Piece) -> tuple[View, ...]:
        """The sections of a piece of mine, read-only, for row-major slabs.

        For a plain model gate [rows, hidden], up [rows, hidden] and down [hidden, rows]; gate and up are adjacent.
        rows = granules * granule_rows. For a model with scales or biases: U8 of [lines, bytes of a line].
        InvalidError: as for piece.
        """
        m = self._model
        if m.slab_format != SlabFormat.ROW_MAJOR:
            raise InvalidError("slabs are granule-major: piece views them")
        self._here(piece)
        rows, out, address = piece.granule_count * m.granule_rows, [], piece.address
        plain = m.dtype in (DType.F32, DType.BF16) and len(m.sections) == 3 and m.expert_tail_bytes == 0
        for section in m.sections:
            line = piece.granule_count * section.bytes
            memory = self._exports.memory(address, section.lines * line)
            if plain:
                shape = (rows, m.hidden) if section.lines == 1 else (m.hidden, rows)
                out.append(View(memory, m.dtype, shape, readonly=True))
            else:
                out.append(View(memory, DType.U8, (section.lines, line), readonly=True))
            address += section.lines * line
        return tuple(out)

    @staticmethod
    def _here(piece: Piece) -> None:
        if piece.address == 0:
            raise InvalidError(f"the piece is not here: rank {piece.rank}, or a layout that is not active")

    def piece_tail(self, piece: Piece) -> View:
        """The bytes after the last granule of a piece of mine: each shard of an expert has a copy."""
        self._here(piece)
        m = self._model
        address = piece.address + piece.granule_count * m.granule_bytes
        return View(self._exports.memory(address, m.expert_tail_bytes), DType.U8, (m.expert_tail_bytes,), readonly=True)

    @property
    def kv(self) -> View:
        """The KV region: bytes, to read and to write."""
        return View(self._exports.memory(self._kv, self._model.kv_bytes), DType.U8, (self._model.kv_bytes,), readonly=False)

    # Events.

    def poll(self, timeout_ms: int = 0) -> Event | None:
        """The agent's next event, or None. Maps new weights and unmaps old ones by itself.

        DisconnectedError: the agent is gone; each call checks for a new one. The active layout can be computed without
        one.
        """
        event, error = _abi.sized(_abi.Event), _abi.sized(_abi.Error)
        code = _abi.lib.tg_poll(self.handle, timeout_ms, ctypes.byref(event), ctypes.byref(error))
        if code == 1:  # TG_AGAIN
            return None
        _abi.check(code, error)
        kind, target = EventKind(event.kind), None
        if kind == EventKind.FLIPPED:
            target = self.maps
        elif event.target:
            target = maps_of(event.target.contents, self._model.experts, self._model.layers)
        flags = (bool(event.joining), bool(event.leaving), bool(event.repair))
        return Event(kind, event.attempt, event.target_epoch, *flags, target, bool(event.pause_steps))

    def fileno(self) -> int:
        """Readable when `poll` may have an event; for select and asyncio. It never changes."""
        return int(_abi.lib.tg_poll_fd(self.handle))

    def prepared(self, attempt: int, ok: bool = True, message: str = "") -> None:
        """The reply to a PREPARE. AgainError: the attempt has ended."""
        self._call(_abi.lib.tg_prepared, attempt, ok, message.encode())

    # The gate.

    def gate_vote(self) -> GateVote:
        """My vote for this step; latches if a flip is armed."""
        raw = _abi.lib.tg_gate_vote(self.handle)
        return GateVote(raw.epoch, raw.hash)

    def gate_decide(self, words: Sequence[GateVote]) -> bool:
        """Whether to flip now: `words` are the votes of all members, including mine, in order of rank. False
        unlatches."""
        raw = (_abi.Vote * len(words))(*(_abi.Vote(*w) for w in words))
        return bool(_abi.lib.tg_gate_decide(self.handle, raw, len(words)))

    def gate_decline(self, reason: str) -> None:
        """After a go: this rank cannot flip. All members decide so on the same data."""
        _abi.lib.tg_gate_decline(self.handle, reason.encode())

    def gate_commit(self, done_fd: int | None = None) -> Maps:
        """After a go, with the KV in place. Returns the layout that is active then.

        With done_fd, memory of the previous layout stays mapped until it is readable: an eventfd that the stream of a
        device writes after the last step.
        """
        if done_fd is None:
            self._call(_abi.lib.tg_gate_commit)
        else:
            self._call(_abi.lib.tg_gate_commit_after, done_fd)
        return self._in_force()

    def gate_join(self, timeout_ms: int) -> Maps:
        """For a joiner that saw a member step in the target epoch. AgainError: no permit here yet."""
        self._call(_abi.lib.tg_gate_join, timeout_ms)
        return self._in_force()

    def _in_force(self) -> Maps:
        maps = self.maps
        assert maps is not None
        return maps

    def stop(self, keep_vote: bool = False) -> None:
        """Abandons the step for good: an exchange broke. Only events count from now on."""
        _abi.lib.tg_stop(self.handle, keep_vote)

    @property
    def stopped(self) -> bool:
        return bool(_abi.lib.tg_stopped(self.handle))

    def unreachable(self, ranks: Sequence[int]) -> None:
        """While stopped: ranks without a connection now."""
        _abi.lib.tg_unreachable(self.handle, (ctypes.c_uint32 * len(ranks))(*ranks), len(ranks))

    def step_done(self) -> None:
        """One whole step of the current epoch has ended."""
        _abi.lib.tg_step_done(self.handle)

    # KV and counters.

    def kv_pull(self, moves: Iterable[KvMove]) -> int:
        """Copies KV from other ranks into mine; returns the bytes, all of them present.

        Sources must not change before every rank has its own.
        """
        if isinstance(moves, ByteMoves):
            raw = moves.raw
        else:
            all_moves = [_abi.KvMove(*m) for m in moves]
            raw = (_abi.KvMove * len(all_moves))(*all_moves)
        out = ctypes.c_uint64()
        self._call(_abi.lib.tg_kv_pull, raw, len(raw), ctypes.sizeof(_abi.KvMove), ctypes.byref(out))
        return out.value

    def count(self, moe_ordinal: int, expert: int, tokens: int) -> None:
        """Counts tokens that this rank, as the source, routed to the expert. Any thread."""
        _abi.lib.tg_count(self.handle, moe_ordinal, expert, tokens)

    def count_executed(self, moe_ordinal: int, expert: int, tokens: int) -> None:
        """Counts tokens that this rank computed with its piece of the expert. Any thread."""
        _abi.lib.tg_count_executed(self.handle, moe_ordinal, expert, tokens)

    def report(self, stats: EngineStats) -> None:
        """Reports the figures in the agent's status. Any thread."""
        raw = _abi.sized(_abi.EngineStats)
        for field in dataclasses.fields(stats):
            setattr(raw, field.name, getattr(stats, field.name))
        self._call(_abi.lib.tg_report, ctypes.byref(raw))
