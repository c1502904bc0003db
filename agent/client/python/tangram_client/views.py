"""Views: the agent's memory without a copy, as bytes, as numbers, and for other libraries by DLPack."""

from __future__ import annotations

import ctypes
import enum
import math
import weakref
from typing import Any

from . import _dlpack
from .errors import InvalidError


class DType(enum.IntEnum):
    """tangram.v1.DType of the checkpoint, and further types for views."""

    UNSPECIFIED = 0
    F32 = 1
    BF16 = 2
    FP8_E4M3_BLOCK128 = 3
    MXFP4 = 4
    # Only for views, not on the wire.
    U8 = 256
    F16 = 257


# Bytes of an element, memoryview format (BF16 as its bits: Python has no such number), DLPack (code, bits).
_ELEMENTS: dict[DType, tuple[int, str, tuple[int, int]]] = {
    DType.F32: (4, "f", (2, 32)),
    DType.BF16: (2, "H", (4, 16)),
    DType.F16: (2, "e", (2, 16)),
    DType.U8: (1, "B", (1, 8)),
}

def element_bytes(dtype: DType) -> int:
    """Bytes of an element. TypeError if elements are not whole bytes, or have scales."""
    if dtype not in _ELEMENTS:
        raise TypeError(f"{dtype.name} has no elements of whole bytes: view its bytes as U8")
    return _ELEMENTS[dtype][0]


Memory = ctypes.Array[ctypes.c_ubyte]


class Exports:
    """The views of one client that are still in use. `platform` as in client.h."""

    def __init__(self, platform: str = "host") -> None:
        self._platform = platform
        self._live: dict[int, weakref.ref[Memory]] = {}

    def __len__(self) -> int:
        return len(self._live)

    def memory(self, address: int, size: int) -> Memory:
        """`size` bytes at `address`, alive while an object made from them is.

        InvalidError if Python cannot access them: reading memory of a GPU this way would end the process.
        """
        if self._platform not in ("", "host"):  # an older library reports none, and uses host memory
            raise InvalidError(f"weights and KV are memory of platform {self._platform}, of which there are no views: give their addresses to a library that copies from there")
        memory = (ctypes.c_ubyte * size).from_address(address)
        key, live = id(memory), self._live
        live[key] = weakref.ref(memory, lambda _: live.pop(key, None))
        return memory


class View:
    """A tensor in the agent's memory: row-major, not copied.

    `data` is a flat memoryview of its bytes, read-only where the memory is. numpy takes it by
    `numpy.from_dlpack(view)` (not BF16) or `numpy.frombuffer(view.data, ...)`, torch by
    `torch.from_dlpack(view)`. Torch knows no read-only tensors: a write to one over weights ends the process
    (SIGSEGV).

    A view of a piece is valid while its layout is active, and after the flip away from it until the first
    `Client.step_done`: then its bank may be freed, and reading it ends the process. One of a dense tensor or of KV
    is valid until the client is closed.
    """

    __slots__ = ("_memory", "dtype", "readonly", "shape")

    def __init__(self, memory: Memory, dtype: DType, shape: tuple[int, ...], readonly: bool) -> None:
        size, wanted = element_bytes(dtype), math.prod(shape)
        if size * wanted != len(memory):
            raise ValueError(f"{dtype.name} of shape {shape} takes {size * wanted} bytes, there are {len(memory)}")
        self._memory = memory
        self.dtype = dtype
        self.shape = shape
        self.readonly = readonly

    @property
    def nbytes(self) -> int:
        return len(self._memory)

    @property
    def address(self) -> int:
        return ctypes.addressof(self._memory)

    @property
    def data(self) -> memoryview:
        """The bytes, flat: format "B"."""
        view = memoryview(self._memory).cast("B")
        return view.toreadonly() if self.readonly else view

    def numbers(self) -> memoryview:
        """The elements, in shape; BF16 as unsigned 16-bit integers that hold its bits."""
        if 0 in self.shape:
            raise ValueError(f"a memoryview has no shape {self.shape}")
        return self.data.cast(_ELEMENTS[self.dtype][1], self.shape)  # type: ignore[call-overload, no-any-return]

    def __dlpack_device__(self) -> tuple[int, int]:
        return _dlpack.CPU, 0

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A capsule of this memory, which keeps the view alive. BufferError for a copy or another device."""
        if stream is not None:
            raise BufferError("memory of the CPU has no streams")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"this memory is of the CPU, not of device {dl_device}")
        if copy:
            raise BufferError("a view is not copied; copy what is made from it")
        versioned = max_version is not None and max_version[0] >= 1
        return _dlpack.capsule(self._memory, self.address, self.shape, _ELEMENTS[self.dtype][2], self.readonly, versioned)

    def __repr__(self) -> str:
        return f"View({self.dtype.name}, {self.shape}{', read-only' if self.readonly else ''})"
