"""engine.h in ctypes.

libtangram_engine.so includes client.h: tangram_client loads it instead of its own library, and uses the kit's client.
"""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_float, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p

from tangram_client import _abi as client_abi

if not hasattr(client_abi.lib, "tge_open"):
    raise ImportError("tangram_engine needs libtangram_engine.so in place of the client's library: name it in TANGRAM_CLIENT_LIBRARY")

Error, sized, check = client_abi.Error, client_abi.sized, client_abi.check

OK, AGAIN, REFUSED, INVALID, NO_ROOM = 0, 1, 2, 4, 5


class Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("agent_socket", c_char_p), ("token_file", c_char_p), ("device", c_uint32), ("agent_wait_seconds", c_uint32),
        ("mesh_listen", c_char_p), ("serve_listen", c_char_p), ("advertise", c_char_p), ("tls_ca", c_char_p), ("tls_cert", c_char_p),
        ("tls_key", c_char_p), ("insecure_fabric", c_int), ("ready_file", c_char_p), ("block_tokens", c_uint32), ("slab_formats", c_uint32),
        ("even_shards_only", c_int), ("max_peer_timeout_ms", c_uint32), ("min_peer_timeout_ms", c_uint32), ("idle_pause_ms", c_uint32),
        ("log_level", c_char_p), ("min_step_ms", c_uint32), ("fault_dir", c_char_p), ("settings", c_char_p),
        ("kv_ahead_ms", c_int32),
    ]


class Submit(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("request", c_char_p), ("gateway", c_char_p), ("prompt", POINTER(c_uint32)), ("prompt_count", c_size_t),
        ("max_tokens", c_uint32), ("temperature", c_float), ("top_p", c_float), ("seed", c_uint64), ("stop_tokens", POINTER(c_uint32)),
        ("stop_count", c_size_t), ("cache_salt", c_char_p), ("generated", c_uint32), ("min_tokens", c_uint32), ("top_k", c_uint32),
        ("min_p", c_float), ("presence_penalty", c_float), ("frequency_penalty", c_float), ("repetition_penalty", c_float),
        ("bias_tokens", POINTER(c_uint32)), ("bias", POINTER(c_float)), ("bias_count", c_size_t), ("logprobs", c_int32),
    ]


class Logprobs(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("tokens", POINTER(c_uint32)), ("values", POINTER(c_float)), ("count", c_size_t), ("rank", c_uint32)]


class Request(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("request", c_char_p), ("gateway", c_char_p), ("running", c_int), ("computed", c_uint32), ("reserved", c_uint32),
        ("blocks", POINTER(c_uint32)), ("block_count", c_size_t), ("state", c_void_p), ("state_size", c_size_t),
        ("generation", c_uint32),
    ]


class KvSet(ctypes.Structure):
    _fields_ = [("layers", c_uint64), ("offset", c_uint64), ("layer_stride", c_uint64), ("block_stride", c_uint64), ("block_bytes", c_uint64)]


class KvLayout(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("offset", c_uint64), ("layer_stride", c_uint64), ("block_stride", c_uint64), ("block_bytes", c_uint64),
        ("blocks", c_uint32), ("free_blocks", c_uint32),
        ("sets", POINTER(KvSet)), ("set_count", c_size_t), ("set_size", c_size_t),
    ]


class Step(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("epoch", c_uint64), ("step", c_uint64), ("rank", c_uint32), ("world_size", c_uint32), ("rows", c_uint64)]


class Bytes(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("size", c_size_t)]


class Piece(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("replica", c_uint32), ("expert", c_uint32), ("granule_start", c_uint32), ("granule_count", c_uint32)]


class Rows(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("layer", c_uint32), ("element", c_uint32), ("rows", c_uint32), ("top_k", c_uint32), ("x", c_void_p),
        ("expert", c_void_p), ("weights", c_void_p), ("active", c_char_p),
    ]


class Arrived(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("rows", c_uint32), ("top_k", c_uint32), ("x", c_void_p), ("replicas", c_void_p), ("weights", c_void_p)]


SELF = c_void_p
SubmitCall = CFUNCTYPE(None, SELF, POINTER(Submit))
CancelCall = CFUNCTYPE(c_int, SELF, c_char_p)
MeasureCall = CFUNCTYPE(None, SELF, POINTER(client_abi.EngineStats))
FitsCall = CFUNCTYPE(c_int, SELF, POINTER(client_abi.Maps), c_int, POINTER(Error))
AnnounceCall = CFUNCTYPE(None, SELF, c_uint64, POINTER(c_uint64), POINTER(c_int))
ComputeCall = CFUNCTYPE(c_int, SELF, POINTER(Step), POINTER(Error))
LayoutCall = CFUNCTYPE(None, SELF, POINTER(KvLayout))
ManifestCall = CFUNCTYPE(None, SELF, c_void_p)
AdoptCall = CFUNCTYPE(c_int, SELF, POINTER(Request), POINTER(c_uint32), POINTER(Error))
PlainCall = CFUNCTYPE(None, SELF)
GoneCall = CFUNCTYPE(None, SELF, c_char_p)
ReserveCall = CFUNCTYPE(c_int, SELF, c_char_p, POINTER(c_uint32), c_size_t, POINTER(Error))
EnterCall = CFUNCTYPE(c_int, SELF, c_uint64, c_int, POINTER(Error))


class Backend(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("self", c_void_p), ("max_tokens", c_uint32), ("vocabulary", c_uint32),
        ("submit", SubmitCall), ("cancel", CancelCall), ("measure", MeasureCall), ("fits", FitsCall), ("announce", AnnounceCall),
        ("compute", ComputeCall), ("kv_layout", LayoutCall), ("manifest", ManifestCall), ("adopt", AdoptCall), ("drop", PlainCall),
        ("gone", GoneCall), ("enter", EnterCall), ("leave", PlainCall),
        ("progress", ManifestCall), ("reserve", ReserveCall), ("unreserve", GoneCall), ("can", c_char_p),
    ]


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    error = POINTER(Error)
    for name, result, arguments in (
        ("tge_open", c_int, [POINTER(Options), POINTER(c_void_p), error]),
        ("tge_close", None, [c_void_p]),
        ("tge_client", c_void_p, [c_void_p]),
        ("tge_manifest_add", None, [c_void_p, POINTER(Request)]),
        ("tge_run", c_int, [c_void_p, POINTER(Backend), error]),
        ("tge_stop", None, [c_void_p]),
        ("tge_exchange", c_int, [c_void_p, c_uint64, POINTER(Bytes), POINTER(Bytes), error]),
        ("tge_pieces", c_int, [c_void_p, c_uint32, POINTER(c_void_p), POINTER(c_size_t), POINTER(c_size_t), error]),
        ("tge_dispatch", c_int, [c_void_p, POINTER(Rows), POINTER(Arrived), error]),
        ("tge_combine", c_int, [c_void_p, c_void_p, c_void_p, error]),
        ("tge_may_emit", c_int, [c_void_p, error]),
        ("tge_emit", None, [c_void_p, c_char_p, c_char_p, c_uint32, c_uint32, c_int]),
        ("tge_emit_logprobs", None, [c_void_p, c_char_p, c_char_p, c_uint32, c_uint32, c_int, POINTER(Logprobs)]),
        ("tge_refuse", None, [c_void_p, c_char_p, c_char_p, c_int, c_char_p]),
        ("tge_prefix_of_salt", c_uint64, [c_char_p]),
        ("tge_prefix_after", c_uint64, [c_uint64, POINTER(c_uint32), c_size_t]),
        ("tge_cached", None, [c_void_p, POINTER(c_uint64), c_size_t, c_int]),
        ("tge_cached_none", None, [c_void_p]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


lib = _declare(client_abi.lib)
