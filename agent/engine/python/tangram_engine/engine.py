"""An engine's process under the kit: `Kit` has agent, mesh, gateways and the step loop, `Backend` is the engine's
interface."""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

from tangram_client import Client, EngineStats, Maps, SlabFormat
from tangram_client.client import setting_lines
from tangram_client.maps import maps_of

from . import _abi


class Entry(enum.IntEnum):
    """The state that an epoch begins with."""

    FRESH = 0
    UNCHANGED = 1
    MIGRATED = 2
    REPAIRED = 3


class Finish(enum.IntEnum):
    GOES_ON = 0
    LENGTH = 1
    STOP = 2
    CANCELLED = 3


class Refusal(enum.IntEnum):
    INVALID = 1
    BUSY = 2
    NOT_READY = 3
    RUNNING = 4


class PeerGone(Exception):
    """The step is abandoned: a peer is gone, or this rank was removed. `Backend.compute` undoes the step and lets it
    pass."""


class NoRoom(Exception):
    """The request does not fit now."""


class Refused(Exception):
    """The layout cannot be computed here; the message has the reason."""


def prefix_of_salt(cache_salt: str = "") -> int:
    """The hash before the first block of a prompt (`Kit.cached`)."""
    return int(_abi.lib.tge_prefix_of_salt(cache_salt.encode()))


def prefix_after(before: int, tokens: Sequence[int]) -> int:
    """The hash after `before` and a full block of these tokens."""
    return int(_abi.lib.tge_prefix_after(before, (ctypes.c_uint32 * len(tokens))(*tokens), len(tokens)))


@dataclasses.dataclass(frozen=True, slots=True)
class Submit:
    """From min_tokens on it sets only fields that Backend.can names; 0 is off."""

    request: str
    gateway: str
    prompt: list[int]
    max_tokens: int  # of the answer, including the `generated` ones
    temperature: float
    top_p: float
    seed: int
    stop_tokens: list[int]
    cache_salt: str = ""  # its cached prefix serves only requests with the same salt
    generated: int = 0  # the prompt's last tokens that belong to the answer, which continues after them
    min_tokens: int = 0  # no stop token is chosen before the answer has this many tokens
    top_k: int = 0
    min_p: float = 0
    presence_penalty: float = 0
    frequency_penalty: float = 0
    repetition_penalty: float = 0
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict)
    logprobs: int | None = None  # for this many likeliest tokens besides the chosen one; None: none


@dataclasses.dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural logarithms of probabilities: of the chosen token, then of the likeliest, best first."""

    tokens: Sequence[int]
    values: Sequence[float]
    rank: int  # of the chosen token, from 1


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """A request with its KV, in a flip's manifest and on its way to another rank."""

    request: str
    gateway: str
    running: bool  # else it waits, and has no KV
    computed: int  # positions whose KV exists, in all sets
    reserved: int  # maximum number of positions
    blocks: Sequence[int]
    state: bytes  # the engine's own
    generation: int = 0  # of its KV: changes as soon as a full block of it may be written again


@dataclasses.dataclass(frozen=True, slots=True)
class KvSet:
    """Layers besides the model's (drafts) with KV in the same blocks: block b of its layer l, as in KvLayout."""

    layers: int
    offset: int
    layer_stride: int
    block_stride: int
    block_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class KvLayout:
    """Block b of layer l of the model is block_bytes at offset + l * layer_stride + b * block_stride of the KV region."""

    offset: int
    layer_stride: int
    block_stride: int
    block_bytes: int
    blocks: int
    free_blocks: int
    sets: Sequence[KvSet] = ()  # besides the model's; the same at all engines of a world, but perhaps in other places


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    epoch: int
    step: int
    rank: int
    world_size: int
    rows: int  # of all ranks


class Element(enum.IntEnum):
    """The type of a row's numbers, in memory and in messages."""

    F32 = 1
    BF16 = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Arrived:
    """Rows to compute here, of all ranks (tge_dispatched). The addresses are valid until the next dispatch."""

    rows: int
    x: int  # float32 [rows, hidden]
    replicas: int  # int32 [rows, top_k]; -1: none
    weights: int  # float32 [rows, top_k]


class Backend(Protocol):
    """The interface of an engine. Only the thread of `Kit.run` calls it. Meaning and order: tangram/engine.h."""

    max_tokens: int  # of prompt and answer
    vocabulary: int
    can: Sequence[str]  # fields of Submit from min_tokens on that are honoured

    def submit(self, submit: Submit) -> None: ...
    def cancel(self, request: str) -> bool: ...
    def stats(self) -> EngineStats: ...
    def fits(self, target: Maps, repair: bool) -> None: ...
    def announce(self, step: int) -> tuple[int, bool]: ...
    def compute(self, step: Step) -> None: ...
    def kv_layout(self) -> KvLayout: ...
    def manifest(self) -> Iterable[Request]: ...
    def adopt(self, request: Request) -> Sequence[int]: ...
    def drop(self) -> None: ...
    def gone(self, request: str) -> None: ...
    def enter(self, maps: Maps, entry: Entry) -> None: ...
    def leave(self) -> None: ...


class Ahead(Protocol):
    """Further calls of a `Backend` whose KV may be copied ahead of a flip, while it steps; all three.

    Without them all KV is fetched in the flip.
    """

    def progress(self) -> Iterable[Request]: ...  # the running requests: gateway and state may be empty
    def reserve(self, request: str, count: int) -> Sequence[int]: ...  # more blocks for a request that may come; NoRoom
    def unreserve(self, request: str) -> None: ...


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode(errors="replace")


def _cut(text: str, size: int) -> bytes:
    """`text` as UTF-8 in at most `size` bytes, whole characters only: its readers reject a partial one."""
    return text.encode(errors="replace")[:size].decode(errors="ignore").encode()


def _array(first: Any, count: int) -> list[int]:
    return first[:count] if count else []


class Kit:
    """Made by `open`. `client` is the agent's side: model, maps, weights, KV.

    Only the kit makes its calls of the gate, of KV and of polling.
    """

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle = handle
        self.client = Client(ctypes.c_void_p(_abi.lib.tge_client(handle)))
        self._error: BaseException | None = None  # of a callback: ends the rank
        self._sets: Any = None  # memory that the last kv_layout points at

    @classmethod
    def open(cls, *, agent_socket: str, token_file: str, mesh_listen: str, serve_listen: str, tls_ca: str, tls_cert: str, tls_key: str, block_tokens: int,
             device: int = 0, agent_wait_seconds: int = 60, advertise: str = "", insecure_fabric: bool = False, ready_file: str = "",
             slab_formats: SlabFormat = SlabFormat.GRANULE_MAJOR, even_shards_only: bool = False, max_peer_timeout_ms: int = 0, min_peer_timeout_ms: int = 0,
             idle_pause_ms: int = 0, log_level: str = "info", min_step_ms: int = 0, fault_dir: str = "", kv_ahead_ms: int = 0,
             settings: Mapping[str, object] | None = None) -> Kit:
        """Listens, waits for the agent, attaches. Raises the classes of tangram_client.errors, naming the wrong option.

        `fault_dir` is for tests. `settings`: values that must be the same at all engines of a world (engine, version,
        max_batch_tokens, ...).
        """
        options, error, out = _abi.sized(_abi.Options), _abi.sized(_abi.Error), ctypes.c_void_p()
        for name, value in locals().copy().items():
            if name in ("cls", "options", "error", "out", "settings"):
                continue
            setattr(options, name, value.encode() if isinstance(value, str) else int(value))
        options.settings = setting_lines(settings)
        for name in ("advertise", "ready_file", "fault_dir"):
            if not getattr(options, name):
                setattr(options, name, None)
        _abi.check(_abi.lib.tge_open(ctypes.byref(options), ctypes.byref(out), ctypes.byref(error)), error)
        return cls(out)

    def run(self, backend: Backend) -> None:
        """Steps until `stop`. Raises a callback's exception, or the reason why this rank can serve no longer."""
        raw, error = self._callbacks(backend), _abi.sized(_abi.Error)
        code = _abi.lib.tge_run(self._handle, ctypes.byref(raw), ctypes.byref(error))
        if self._error is not None:
            raise self._error
        _abi.check(code, error)

    def stop(self) -> None:
        """From any thread, or a signal handler."""
        _abi.lib.tge_stop(self._handle)

    # Within Backend.compute.

    def exchange(self, sequence: int, send: Sequence[bytes | memoryview]) -> list[memoryview]:
        """send[r] goes to rank r; returns the ranks' data for this one, valid until the next exchange. PeerGone."""
        count = len(send)
        out, back, keep = (_abi.Bytes * count)(), (_abi.Bytes * count)(), list[bytes]()
        for r, data in enumerate(send):
            raw = data if isinstance(data, bytes) else bytes(data)
            keep.append(raw)
            out[r] = _abi.Bytes(ctypes.cast(ctypes.c_char_p(raw), ctypes.c_void_p), len(raw))
        error = _abi.sized(_abi.Error)
        self._peers(_abi.lib.tge_exchange(self._handle, sequence, out, back, ctypes.byref(error)), error)
        return [memoryview((ctypes.c_ubyte * b.size).from_address(b.data)) if b.size else memoryview(b"") for b in back]

    def pieces(self, layer: int) -> memoryview:
        """This rank's pieces of a layer's experts: bytes, one tge_piece after another, in order of replicas.

        From enter on; valid until the next enter or leave.
        """
        first, count, size, error = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(), _abi.sized(_abi.Error)
        _abi.check(_abi.lib.tge_pieces(self._handle, layer, ctypes.byref(first), ctypes.byref(count), ctypes.byref(size), ctypes.byref(error)), error)
        if count.value == 0:
            return memoryview(b"")
        if size.value != ctypes.sizeof(_abi.Piece):
            raise ValueError(f"the library's tge_piece has {size.value} bytes, and {ctypes.sizeof(_abi.Piece)} are known here")
        return memoryview((ctypes.c_ubyte * (count.value * size.value)).from_address(first.value or 0))

    def dispatch(self, layer: int, element: Element, rows: int, top_k: int, x: int, experts: int, weights: int, active: bytes | None = None) -> Arrived:
        """Rows to the ranks that have their experts: by all ranks, in each layer with experts, also with no rows. PeerGone.

        Addresses of x [rows, hidden] of `element`, experts int32 [rows, top_k] and weights float32 [rows, top_k], each
        contiguous; they are read until `combine` returns. active: a byte per rank, 0 for those that take no part, None
        if all do. Other Python threads run meanwhile.
        """
        raw, out, error = _abi.sized(_abi.Rows), _abi.sized(_abi.Arrived), _abi.sized(_abi.Error)
        raw.layer, raw.element, raw.rows, raw.top_k, raw.x, raw.expert, raw.weights, raw.active = layer, element, rows, top_k, x, experts, weights, active
        self._peers(_abi.lib.tge_dispatch(self._handle, ctypes.byref(raw), ctypes.byref(out), ctypes.byref(error)), error)
        return Arrived(out.rows, out.x or 0, out.replicas or 0, out.weights or 0)

    def combine(self, results: int, y: int) -> None:
        """Sends the results back and sums them. PeerGone.

        Addresses of float32 [received rows, hidden], and of [rows of the dispatch, hidden], which is written.
        """
        error = _abi.sized(_abi.Error)
        self._peers(_abi.lib.tge_combine(self._handle, results, y, ctypes.byref(error)), error)

    def may_emit(self) -> None:
        """Before the first `emit` of a step. PeerGone: this rank was removed."""
        error = _abi.sized(_abi.Error)
        self._peers(_abi.lib.tge_may_emit(self._handle, ctypes.byref(error)), error)

    def emit(self, gateway: str, request: str, position: int, token: int, finish: Finish = Finish.GOES_ON, logprobs: Logprobs | None = None) -> None:
        """`logprobs` for a request that requested them."""
        raw = None
        if logprobs is not None:
            count = len(logprobs.tokens)
            raw = ctypes.byref(_abi.Logprobs(ctypes.sizeof(_abi.Logprobs), (ctypes.c_uint32 * count)(*logprobs.tokens), (ctypes.c_float * count)(*logprobs.values),
                                             count, logprobs.rank))
        _abi.lib.tge_emit_logprobs(self._handle, gateway.encode(), request.encode(), position, token, int(finish), raw)

    def refuse(self, gateway: str, request: str, code: Refusal, message: str) -> None:
        _abi.lib.tge_refuse(self._handle, gateway.encode(), request.encode(), int(code), message.encode())

    def cached(self, hashes: Sequence[int], here: bool = True) -> None:
        """Reports prefixes that are cached here, or no longer. For gateways, a hint.

        Hashes of full blocks, by `prefix_of_salt` and `prefix_after`.
        """
        _abi.lib.tge_cached(self._handle, (ctypes.c_uint64 * len(hashes))(*hashes), len(hashes), here)

    def cached_none(self) -> None:
        _abi.lib.tge_cached_none(self._handle)

    def _peers(self, code: int, error: Any) -> None:
        if code == _abi.AGAIN:
            raise PeerGone(_text(error.message))
        _abi.check(code, error)

    # Calls from C. No exception may leave a callback: the first one is kept, and ends the rank.

    def _guarded(self, call: Callable[..., int | None], *arguments: Any, why: Any = None) -> int:
        try:
            return call(*arguments) or _abi.OK
        except PeerGone as e:
            code, said = _abi.AGAIN, str(e)
        except NoRoom as e:
            code, said = _abi.NO_ROOM, str(e)
        except Refused as e:
            code, said = _abi.REFUSED, str(e)
        except BaseException as e:
            self._error = self._error or e
            traceback.print_exc()
            self.stop()
            code, said = _abi.INVALID, f"{type(e).__name__}: {e}"
        if why:
            why.contents.message = _cut(said, 499)
        return code

    def _callbacks(self, backend: Backend) -> _abi.Backend:
        guarded, model = self._guarded, self.client.model

        def submit(raw: Any) -> None:
            s = _abi.Submit(logprobs=-1)
            ctypes.memmove(ctypes.byref(s), raw, min(raw.contents.struct_size, ctypes.sizeof(s)))  # it may be shorter
            backend.submit(Submit(
                _text(s.request), _text(s.gateway), _array(s.prompt, s.prompt_count), s.max_tokens, s.temperature, s.top_p, s.seed,
                _array(s.stop_tokens, s.stop_count), _text(s.cache_salt), s.generated, s.min_tokens, s.top_k, s.min_p, s.presence_penalty, s.frequency_penalty,
                s.repetition_penalty, dict(zip(_array(s.bias_tokens, s.bias_count), s.bias[: s.bias_count], strict=True)),
                s.logprobs if s.logprobs >= 0 else None,
            ))

        def measure(raw: Any) -> None:
            for field in dataclasses.fields(stats := backend.stats()):
                setattr(raw.contents, field.name, getattr(stats, field.name))

        def announce(step: int, rows: Any, work: Any) -> None:
            rows[0], todo = backend.announce(step)
            work[0] = int(todo)

        def compute(raw: Any) -> None:
            s = raw.contents
            backend.compute(Step(s.epoch, s.step, s.rank, s.world_size, s.rows))

        def layout(raw: Any) -> None:
            kv, to = backend.kv_layout(), raw.contents
            for name in ("offset", "layer_stride", "block_stride", "block_bytes", "blocks", "free_blocks"):
                setattr(to, name, getattr(kv, name))
            if not kv.sets:
                return
            if to.struct_size < ctypes.sizeof(_abi.KvLayout):
                raise ValueError("this kit's library carries no KV beside that of the model's layers")
            self._sets = (_abi.KvSet * len(kv.sets))(*(dataclasses.astuple(s) for s in kv.sets))  # kept until the next
            to.sets, to.set_count, to.set_size = self._sets, len(kv.sets), ctypes.sizeof(_abi.KvSet)

        def told(requests: Iterable[Request], out: Any) -> None:
            for r in requests:
                blocks, state = (ctypes.c_uint32 * len(r.blocks))(*r.blocks), ctypes.create_string_buffer(r.state, len(r.state) or 1)
                raw = _abi.Request(ctypes.sizeof(_abi.Request), r.request.encode(), r.gateway.encode(), r.running, r.computed, r.reserved, blocks,
                                   len(r.blocks), ctypes.cast(state, ctypes.c_void_p), len(r.state), r.generation)
                _abi.lib.tge_manifest_add(out, ctypes.byref(raw))

        def adopt(raw: Any, blocks: Any) -> None:
            r = raw.contents
            took = backend.adopt(Request(_text(r.request), _text(r.gateway), bool(r.running), r.computed, r.reserved, _array(r.blocks, r.block_count),
                                         ctypes.string_at(r.state, r.state_size), r.generation))
            if len(took) != r.block_count:
                raise ValueError(f"adopt of {_text(r.request)} gave {len(took)} blocks for {r.block_count}")
            for i, block in enumerate(took):
                blocks[i] = block

        def reserve(request: bytes, blocks: Any, count: int) -> None:
            for i, block in enumerate(ahead.reserve(_text(request), count)):
                blocks[i] = block

        def enter(entry: int) -> None:
            assert (maps := self.client.maps) is not None
            backend.enter(maps, Entry(entry))

        a = _abi
        out = a.sized(a.Backend)
        out.max_tokens, out.vocabulary = backend.max_tokens, backend.vocabulary
        out.can = " ".join(backend.can).encode()
        out.submit = a.SubmitCall(lambda _, s: void(guarded(submit, s)))
        out.cancel = a.CancelCall(lambda _, r: guarded(lambda: int(backend.cancel(_text(r)))))
        out.measure = a.MeasureCall(lambda _, s: void(guarded(measure, s)))
        out.fits = a.FitsCall(lambda _, m, repair, why: guarded(lambda: backend.fits(maps_of(m.contents, model.experts, model.layers), bool(repair)), why=why))
        out.announce = a.AnnounceCall(lambda _, step, rows, work: void(guarded(announce, step, rows, work)))
        out.compute = a.ComputeCall(lambda _, step, why: guarded(compute, step, why=why))
        out.kv_layout = a.LayoutCall(lambda _, kv: void(guarded(layout, kv)))
        out.manifest = a.ManifestCall(lambda _, m: void(guarded(lambda: told(backend.manifest(), m))))
        out.adopt = a.AdoptCall(lambda _, r, blocks, why: guarded(adopt, r, blocks, why=why))
        out.drop = a.PlainCall(lambda _: void(guarded(backend.drop)))
        out.gone = a.GoneCall(lambda _, r: void(guarded(lambda: backend.gone(_text(r)))))
        out.enter = a.EnterCall(lambda _, epoch, entry, why: guarded(enter, entry, why=why))
        out.leave = a.PlainCall(lambda _: void(guarded(backend.leave)))
        if all(hasattr(backend, name) for name in ("progress", "reserve", "unreserve")):
            ahead = cast(Ahead, backend)
            out.progress = a.ManifestCall(lambda _, m: void(guarded(lambda: told(ahead.progress(), m))))
            out.reserve = a.ReserveCall(lambda _, r, blocks, count, why: guarded(reserve, r, blocks, count, why=why))
            out.unreserve = a.GoneCall(lambda _, r: void(guarded(lambda: ahead.unreserve(_text(r)))))
        return out


def void(_: object) -> None:
    """For callbacks that return nothing."""
