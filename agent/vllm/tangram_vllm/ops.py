"""libtangram_experts by ctypes: experts over a table of pieces, and products of few rows (agent/vllm/ops/experts.h)."""

from __future__ import annotations

import ctypes
import os
import pathlib
from collections.abc import Sequence
from ctypes import c_char_p, c_int, c_size_t, c_uint32, c_void_p
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

SONAME = "libtangram_experts.so.1"
GRANULE_MAJOR, ROW_MAJOR = 1, 2
_ELEMENTS = {torch.float32: (1, 4), torch.bfloat16: (2, 2)}  # as the header numbers them, and bytes


class _Shape(ctypes.Structure):
    _fields_ = [("hidden", c_uint32), ("granule_rows", c_uint32), ("element", c_uint32), ("format", c_uint32)]


# tg_experts_piece, and Placed.
_PIECES = np.dtype([("gate", "u8"), ("up", "u8"), ("down", "u8"), ("row_pitch", "u4"), ("down_pitch", "u4"), ("expert", "u4"), ("granules", "u4")])
PLACED = np.dtype([("expert", "u4"), ("granules", "u4"), ("address", "u8")])


class Placed(NamedTuple):
    """A run of granules of an expert at an address of this process. `expert`: its number in ids."""

    expert: int
    granules: int
    address: int


class Table:
    """The pieces of one layer on this rank. The caller owns the memory: a table is valid while its pieces exist."""

    def __init__(self, hidden: int, granule_rows: int, dtype: torch.dtype, slab_format: int, pieces: Sequence[Placed] | NDArray[np.void]) -> None:
        """pieces: an array has dtype PLACED. ValueError: a type of element that the operator does not compute."""
        if dtype not in _ELEMENTS:
            raise ValueError(f"experts of {dtype} are not computed: float32 and bfloat16 are")
        element, size = _ELEMENTS[dtype]
        self.hidden = hidden
        self.shape = _Shape(hidden, granule_rows, element, slab_format)
        placed = np.asarray(pieces, PLACED)
        self.pieces = np.zeros(len(placed), _PIECES)
        self.pieces["gate"], self.pieces["expert"], self.pieces["granules"] = placed["address"], placed["expert"], placed["granules"]
        if slab_format != GRANULE_MAJOR:  # gate, up and down one after another, without gaps
            lines = placed["granules"].astype(np.uint64) * np.uint64(granule_rows)
            part = lines * np.uint64(hidden * size)
            self.pieces["up"], self.pieces["down"] = placed["address"] + part, placed["address"] + np.uint64(2) * part
            self.pieces["row_pitch"], self.pieces["down_pitch"] = hidden, lines


class Operator:
    """One call at a time. `threads`: of a call, including the caller's."""

    def __init__(self, threads: int = 1) -> None:
        self._library = _load()
        self._handle = self._library.tg_experts_open(threads)
        if not self._handle:
            raise ValueError(f"no operator with {threads} threads: 1 to 256 are possible, if the system has as many to give")

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle:
            self._library.tg_experts_close(handle)

    def add(self, table: Table, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, y: torch.Tensor) -> None:
        """y[row] += the result of the table's pieces of experts ids[row] for x[row], times weights[row].

        x, y: float32 [rows, hidden]; ids: int32 [rows, k]; weights: float32 [rows, k]; contiguous. Other Python threads
        run meanwhile. ValueError: wrong shape or type; RuntimeError: the operator's error.
        """
        rows, k = ids.shape
        for name, tensor, shape, dtype in (("x", x, (rows, table.hidden), torch.float32), ("ids", ids, (rows, k), torch.int32),
                                           ("weights", weights, (rows, k), torch.float32), ("y", y, (rows, table.hidden), torch.float32)):
            if tensor.shape != shape or tensor.dtype != dtype or not tensor.is_contiguous():
                raise ValueError(f"{name} must be contiguous {dtype} of shape {shape}, and is {tensor.dtype} of {tuple(tensor.shape)}")
        self.add_at(table, x.data_ptr(), ids.data_ptr(), weights.data_ptr(), rows, k, y.data_ptr())

    def add_at(self, table: Table, x: int, ids: int, weights: int, rows: int, k: int, y: int) -> None:
        """The same with addresses of arrays as for `add`. RuntimeError: the operator's error."""
        message = ctypes.create_string_buffer(300)
        if self._library.tg_experts_run(self._handle, ctypes.byref(table.shape), table.pieces.ctypes.data, len(table.pieces), 0, x, ids, weights, rows, k, y,
                                        message, len(message)):
            raise RuntimeError(f"experts: {message.value.decode(errors='replace')}")


    def linear(self, x: torch.Tensor, parts: Sequence[tuple[torch.Tensor, torch.Tensor | None]]) -> torch.Tensor:
        """x [..., k] times weights [n, k] in the checkpoint's layout, plus biases [n]; the parts' results concatenated.

        All of x's dtype. A row's bits do not depend on the other rows. ValueError: wrong shape or type; RuntimeError:
        the operator's error.
        """
        if x.dtype not in _ELEMENTS:
            raise ValueError(f"x is {x.dtype}: float32 and bfloat16 are computed")
        element, size = _ELEMENTS[x.dtype]
        x = x.contiguous()
        rows, width = x.numel() // x.shape[-1], sum(len(weight) for weight, _ in parts)
        y = torch.empty(*x.shape[:-1], width, dtype=x.dtype)
        message, begin = ctypes.create_string_buffer(300), 0
        for weight, bias in parts:
            if weight.dtype != x.dtype or weight.ndim != 2 or weight.shape[1] != x.shape[-1] or not weight.is_contiguous():
                raise ValueError(f"a weight must be contiguous {x.dtype} [n, {x.shape[-1]}], and is {weight.dtype} of {tuple(weight.shape)}")
            n = len(weight)
            if self._library.tg_experts_linear(self._handle, element, weight.data_ptr(), n, x.shape[-1], 0, x.data_ptr(), rows, y.data_ptr() + begin * size,
                                               width, message, len(message)):
                raise RuntimeError(f"linear: {message.value.decode(errors='replace')}")
            if bias is not None:
                y[..., begin : begin + n] += bias
            begin += n
        return y


def _load() -> ctypes.CDLL:
    """The library named by TANGRAM_EXPERTS_LIBRARY, the one next to this file, or the system's."""
    beside = pathlib.Path(__file__).with_name(SONAME)
    library = ctypes.CDLL(os.environ.get("TANGRAM_EXPERTS_LIBRARY") or (str(beside) if beside.exists() else SONAME))
    library.tg_experts_open.restype, library.tg_experts_open.argtypes = c_void_p, [c_uint32]
    library.tg_experts_close.restype, library.tg_experts_close.argtypes = None, [c_void_p]
    library.tg_experts_run.restype = c_int
    library.tg_experts_run.argtypes = [c_void_p, c_void_p, c_void_p, c_size_t, c_uint32, c_void_p, c_void_p, c_void_p, c_uint32, c_uint32,
                                       c_void_p, c_char_p, c_size_t]
    library.tg_experts_linear.restype = c_int
    library.tg_experts_linear.argtypes = [c_void_p, c_uint32, c_void_p, c_uint32, c_uint32, c_uint32, c_void_p, c_uint32, c_void_p, c_size_t, c_char_p, c_size_t]
    return library
