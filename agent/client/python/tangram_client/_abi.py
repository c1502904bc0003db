"""client.h, kv_plan.h and kv_format.h in ctypes: structs, the shared library, its functions.

The structs are those of version 1. A newer library fills these members only; an older one leaves those that it lacks
at zero.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
from ctypes import (
    POINTER,
    c_char,
    c_char_p,
    c_int,
    c_int32,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any, Iterator, TypeVar

from .errors import CLASSES, TangramError

SONAME = "libtangram_client.so.1"

Fields = list[tuple[str, Any]]


def _names(kind: Any, names: str) -> Fields:
    return [(name, kind) for name in names.split()]


class Error(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("code", c_int), ("message", c_char * 500)]


class Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        *_names(c_char_p, "socket_path token"),
        *_names(c_uint32, "device kv_block_tokens"),
        *_names(c_char_p, "mesh_endpoint frontend"),
        *_names(c_int, "even_shards_only mixed_layouts attention_data_only"),
        ("slab_formats", c_uint32),
        *_names(c_char_p, "cuda_driver settings"),
    ]


class Model(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        *_names(c_char_p, "world member"),
        ("config_json", c_void_p),
        ("config_json_size", c_size_t),
        *_names(c_uint32, "layers moe_layers hidden moe_inner experts top_k"),
        *_names(c_uint32, "query_heads kv_heads head_dim granule_rows granules"),
        *_names(c_uint64, "granule_bytes expert_tail_bytes"),
        *_names(c_uint32, "dtype banks"),
        ("kv", c_void_p),
        ("kv_bytes", c_uint64),
        ("dense", c_void_p),
        ("dense_bytes", c_uint64),
        *_names(c_uint32, "slab_format kv_head_token_bytes"),
        ("sections", c_void_p),
        *_names(c_size_t, "section_count section_size"),
        ("platform", c_char_p),
        ("page_bytes", c_uint64),
    ]


class Section(ctypes.Structure):
    _fields_ = [*_names(c_uint64, "lines bytes")]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        *_names(c_uint32, "dtype rank"),
        ("shape", c_uint64 * 4),
        ("data", c_void_p),
    ]


class Piece(ctypes.Structure):
    _fields_ = [*_names(c_uint32, "rank granule_start granule_count"), ("data", c_void_p)]


class Expert(ctypes.Structure):
    _fields_ = [*_names(c_uint32, "replicas shards"), ("pieces", c_void_p)]


class AttentionGroup(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("ranks", POINTER(c_uint32)),
        ("query_head_bounds", POINTER(c_uint32)),
    ]


class LayerMap(ctypes.Structure):
    _fields_ = [
        ("layer", c_uint32),
        ("moe_ordinal", c_int32),
        ("experts", c_void_p),
        ("attention_groups", c_uint32),
        ("attention", c_void_p),
    ]


class Maps(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("epoch", c_uint64),
        ("hash", c_uint8 * 32),
        ("rank", c_int32),
        ("world_size", c_uint32),
        *_names(POINTER(c_char_p), "members mesh frontends"),
        ("layers", c_void_p),
        ("pods", POINTER(c_char_p)),
        *_names(c_size_t, "layer_size expert_size piece_size group_size"),
    ]


class Event(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kind", c_int),
        *_names(c_uint64, "attempt target_epoch"),
        *_names(c_int, "joining leaving repair"),
        ("target", POINTER(Maps)),
        ("pause_steps", c_uint64),
    ]


class Vote(ctypes.Structure):
    _fields_ = _names(c_uint64, "epoch hash")


class KvMove(ctypes.Structure):
    _fields_ = [
        ("source_rank", c_uint32),
        *_names(c_uint64, "source_offset target_offset"),
        ("length", c_uint32),
    ]


class EngineStats(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        *_names(c_uint64, "kv_pages kv_free_pages kv_reserved_tokens running waiting"),
    ]


class KvLayer(ctypes.Structure):
    _fields_ = [("count", c_size_t), ("groups", POINTER(AttentionGroup))]


class KvRequest(ctypes.Structure):
    _fields_ = [
        ("id", c_char_p),
        *_names(c_uint32, "home length reserved block_count"),
        ("blocks", POINTER(c_uint32)),
    ]


class KvRank(ctypes.Structure):
    _fields_ = [
        *_names(c_uint32, "total_pages free_pages"),
        ("strip_count", c_size_t),
        ("strips", c_void_p),
    ]


class KvManifest(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        *_names(c_uint32, "query_heads kv_heads block_tokens head_token_bytes"),
        ("layers", c_size_t),
        *_names(POINTER(KvLayer), "old_groups new_groups"),
        *_names(c_size_t, "layer_size group_size old_ranks"),
        ("new_of_old", POINTER(c_int32)),
        ("ranks", POINTER(KvRank)),
        *_names(c_size_t, "rank_size strip_size"),
        ("new_ranks", c_uint32),
        ("rank", c_int32),
        ("joined_pages", POINTER(c_uint32)),
        ("requests", c_size_t),
        ("request", POINTER(KvRequest)),
        ("request_size", c_size_t),
    ]


class KvHome(ctypes.Structure):
    _fields_ = [
        ("id", c_char_p),
        *_names(c_uint32, "home block_count"),
        ("blocks", POINTER(c_uint32)),
    ]


class KvPlanned(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("requests", c_size_t),
        ("request", c_void_p),
        *_names(c_size_t, "request_size new_ranks"),
        ("next_block", POINTER(c_uint32)),
        ("requests_moved", c_uint64),
        ("moves", c_size_t),
        ("move", c_void_p),
        ("kept_strips", c_size_t),
        ("kept", c_void_p),
        ("freed_strips", c_size_t),
        ("freed", c_void_p),
        *_names(c_size_t, "move_size kept_size freed_size"),
        *_names(c_uint64, "moved_bytes local_bytes"),
    ]


class KvFormat(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("offset", c_uint64),
        *_names(c_uint32, "layers blocks heads block_tokens element key_width value_width reserved"),
        *_names(c_uint64, "layer_stride block_stride head_stride token_stride value_offset whole_page_bytes"),
    ]


class KvPageCopy(ctypes.Structure):
    _fields_ = _names(c_uint32, "source_rank source_page source_stride target_page target_stride pages tokens")


class KvByteMoves(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("moves", c_size_t),
        ("move", c_void_p),
        ("move_size", c_size_t),
        ("bytes", c_uint64),
    ]


S = TypeVar("S", bound=ctypes.Structure)


def sized(kind: type[S]) -> S:
    """A struct that begins with struct_size; all else is zero."""
    out = kind()
    out.struct_size = ctypes.sizeof(kind)
    return out


def array_at(kind: type[S], address: int | None, count: int, size: int) -> Iterator[S]:
    """The elements of a library's array, which are `size` bytes apart."""
    if address:
        for i in range(count):
            yield kind.from_address(address + i * size)


def _load() -> ctypes.CDLL:
    """The library named by TANGRAM_CLIENT_LIBRARY, that of this package, or the system's."""
    named = os.environ.get("TANGRAM_CLIENT_LIBRARY")
    if named:
        return ctypes.CDLL(named)
    beside = pathlib.Path(__file__).with_name(SONAME)
    return ctypes.CDLL(str(beside) if beside.exists() else SONAME)


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    error, client = POINTER(Error), c_void_p
    functions: dict[str, tuple[Any, list[Any]]] = {
        "tg_version": (c_char_p, []),
        "tg_attach": (c_int, [POINTER(Options), POINTER(client), error]),
        "tg_detach": (None, [client]),
        "tg_get_model": (POINTER(Model), [client]),
        "tg_dense_tensors": (c_size_t, [client, POINTER(c_void_p), POINTER(c_size_t)]),
        "tg_maps_current": (POINTER(Maps), [client]),
        "tg_poll": (c_int, [client, c_int, POINTER(Event), error]),
        "tg_poll_fd": (c_int, [client]),
        "tg_prepared": (c_int, [client, c_uint64, c_int, c_char_p, error]),
        "tg_gate_vote": (Vote, [client]),
        "tg_gate_decide": (c_int, [client, POINTER(Vote), c_size_t]),
        "tg_gate_decline": (None, [client, c_char_p]),
        "tg_stop": (None, [client, c_int]),
        "tg_stopped": (c_int, [client]),
        "tg_unreachable": (None, [client, POINTER(c_uint32), c_size_t]),
        "tg_gate_commit": (c_int, [client, error]),
        "tg_gate_commit_after": (c_int, [client, c_int, error]),
        "tg_gate_join": (c_int, [client, c_int, error]),
        "tg_kv_pull": (c_int, [client, POINTER(KvMove), c_size_t, c_size_t, POINTER(c_uint64), error]),
        "tg_step_done": (None, [client]),
        "tg_count": (None, [client, c_uint32, c_uint32, c_uint64]),
        "tg_count_executed": (None, [client, c_uint32, c_uint32, c_uint64]),
        "tg_report": (c_int, [client, POINTER(EngineStats), error]),
        "tg_kv_plan": (c_int, [POINTER(KvManifest), POINTER(POINTER(KvPlanned)), error]),
        "tg_kv_plan_free": (None, [POINTER(KvPlanned)]),
        "tg_kv_format_check": (c_int, [POINTER(KvFormat), c_uint64, error]),
        "tg_kv_byte_moves_of": (
            c_int,
            [POINTER(POINTER(KvFormat)), c_size_t, POINTER(KvFormat), POINTER(KvPageCopy), c_size_t, c_size_t, POINTER(POINTER(KvByteMoves)), error],
        ),
        "tg_kv_byte_moves_free": (None, [POINTER(KvByteMoves)]),
    }
    for name, (result, arguments) in functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


lib = _declare(_load())


def check(code: int, error: Error) -> None:
    """Raises the class of a tg_code, with the library's message."""
    if code != 0:
        raise CLASSES.get(code, TangramError)(error.message.decode(errors="replace"))
