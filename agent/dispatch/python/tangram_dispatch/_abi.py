"""dispatch.h in ctypes: structs, the shared library, its functions."""

from __future__ import annotations

import ctypes
import os
import pathlib
from ctypes import POINTER, c_char, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p

OK, AGAIN, REFUSED, DISCONNECTED, INVALID = 0, 1, 2, 3, 4


class Error(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("code", c_int), ("message", c_char * 500)]


class Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("hidden", c_uint32), ("top_k", c_uint32), ("experts", c_uint32), ("x", c_uint32), ("wire", c_uint32),
        ("sums", c_uint32), ("most_tokens", c_uint32), ("slots", c_uint32), ("slot_bytes", c_uint64), ("timeout_us", c_int64),
        ("packed_capacity", c_uint64), ("world", c_char_p), ("tls_ca", c_char_p), ("tls_cert", c_char_p), ("tls_key", c_char_p),
    ]


class Member(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("name", c_char_p), ("generation", c_uint64), ("node", c_char_p), ("local", c_char_p), ("endpoint", c_char_p),
        ("pod", c_char_p),
    ]


class Piece(ctypes.Structure):
    _fields_ = [(name, c_uint32) for name in ("layer", "expert", "alternative", "rank", "granule_start", "granule_count")]


class Handle(ctypes.Structure):
    _fields_ = [("epoch", c_uint64), ("pair", c_uint64)]


class Packed(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("rows", c_uint64), ("wanted", c_uint64), ("x", c_void_p), ("scales", POINTER(c_float)),
        ("experts", POINTER(c_uint32)), ("counts", POINTER(c_uint32)), ("local", c_size_t),
    ]


class Contribution(ctypes.Structure):
    _fields_ = [("row", c_uint32), ("k", c_uint32), ("expert", c_int32)]


class Missed(ctypes.Structure):
    _fields_ = [(name, c_uint32) for name in ("rank", "cause", "doing", "layer")]


class DispatchError(RuntimeError):
    """An error of the library; `code` is a tg_code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


_FUNCTIONS = {
    "tgd_size_hint": [POINTER(Options), c_uint32, c_uint32, POINTER(c_uint64), POINTER(c_uint64)],
    "tgd_open": [POINTER(Options), POINTER(Member), POINTER(c_void_p)],
    "tgd_prepare": [c_void_p, POINTER(Member), c_size_t, c_size_t, c_int],
    "tgd_update_members": [c_void_p, c_uint64, POINTER(Member), c_size_t, c_size_t, POINTER(Piece), c_size_t, c_size_t],
    "tgd_ended": [c_void_p, c_char_p, c_uint64],
    "tgd_send": [c_void_p, c_uint32, c_uint32, c_void_p, c_void_p, c_void_p, POINTER(Handle)],
    "tgd_receive": [c_void_p, POINTER(Handle), c_int, POINTER(Packed)],
    "tgd_next_combine_buffer": [c_void_p, POINTER(Handle), POINTER(c_void_p)],
    "tgd_send_back": [c_void_p, POINTER(Handle), c_void_p],
    "tgd_finish": [c_void_p, POINTER(Handle), c_int, c_void_p],
    "tgd_mask": [c_void_p, c_uint32, c_char_p],
}


def _load() -> ctypes.CDLL:
    beside = pathlib.Path(__file__).parent / "libtangram_dispatch.so.1"
    path = os.environ.get("TANGRAM_DISPATCH_LIBRARY") or (str(beside) if beside.exists() else beside.name)
    library = ctypes.CDLL(path)
    for name, arguments in _FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = [*arguments, POINTER(Error)], c_int
    library.tgd_close.argtypes, library.tgd_close.restype = [c_void_p], None
    library.tgd_endpoint.argtypes, library.tgd_endpoint.restype = [c_void_p], c_char_p
    library.tgd_missing.argtypes, library.tgd_missing.restype = [c_void_p, POINTER(POINTER(Contribution))], c_size_t
    library.tgd_active_ranks.argtypes, library.tgd_active_ranks.restype = [c_void_p, POINTER(POINTER(c_uint8))], c_size_t
    library.tgd_cause.argtypes, library.tgd_cause.restype = [c_void_p, c_uint32], c_char_p
    library.tgd_found.argtypes, library.tgd_found.restype = [c_void_p, c_uint32, POINTER(Missed)], c_int
    library.tgd_path.argtypes, library.tgd_path.restype = [c_void_p, c_uint32], c_char_p
    return library


lib = _load()


def call(name: str, *arguments: object) -> bool:
    """True for TG_OK, False for TG_AGAIN; raises DispatchError."""
    error = Error(struct_size=ctypes.sizeof(Error))
    code: int = getattr(lib, name)(*arguments, ctypes.byref(error))
    if code in (OK, AGAIN):
        return code == OK
    raise DispatchError(code, error.message.decode(errors="replace"))
