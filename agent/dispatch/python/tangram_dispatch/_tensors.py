"""Memory of numpy arrays and torch tensors, without copies. Imports only the library that the caller uses."""

from __future__ import annotations

import ctypes
from typing import Any

# Kinds by the names of numpy and torch. numpy has no BF16: its bits are uint16.
_KINDS = {
    "float32": "f32", "torch.float32": "f32", "bfloat16": "bf16", "torch.bfloat16": "bf16", "uint16": "bf16", "torch.uint16": "bf16",
    "int32": "i32", "torch.int32": "i32", "int64": "i64", "torch.int64": "i64",
}


def is_torch(tensor: Any) -> bool:
    return hasattr(tensor, "data_ptr")


def address(tensor: Any, kind: str, shape: tuple[int, ...], name: str) -> int:
    """The address of a row-major tensor of this kind and shape in host memory; otherwise ValueError with its name."""
    found = _KINDS.get(str(tensor.dtype), str(tensor.dtype))
    if found != kind:
        raise ValueError(f"{name} is of {tensor.dtype}: want {kind}")
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} is {tuple(tensor.shape)}: want {shape}")
    if is_torch(tensor):
        if tensor.device.type != "cpu":
            raise ValueError(f"{name} is on {tensor.device}: this library works in host memory")
        if not tensor.is_contiguous():
            raise ValueError(f"{name} is not contiguous")
        return int(tensor.data_ptr())
    if not tensor.flags.c_contiguous:
        raise ValueError(f"{name} is not contiguous")
    return int(tensor.ctypes.data)


def view(where: int, kind: str, shape: tuple[int, ...], like: Any) -> Any:
    """A tensor of the same library as `like` over memory that it does not own; do not use it after that memory ends."""
    size = {"f32": 4, "bf16": 2, "u8": 1, "i32": 4, "i64": 8}[kind]
    count = 1
    for length in shape:
        count *= length
    memory = (ctypes.c_uint8 * (count * size)).from_address(where) if count > 0 else bytearray()
    if is_torch(like):
        import torch

        kinds = {"f32": torch.float32, "bf16": torch.bfloat16, "u8": torch.uint8, "i32": torch.int32, "i64": torch.int64}
        return torch.frombuffer(memory, dtype=kinds[kind]).reshape(shape) if count > 0 else torch.empty(shape, dtype=kinds[kind])
    import numpy

    kinds = {"f32": numpy.float32, "bf16": numpy.uint16, "u8": numpy.uint8, "i32": numpy.int32, "i64": numpy.int64}
    return numpy.frombuffer(memory, dtype=kinds[kind]).reshape(shape)


def empty(kind: str, shape: tuple[int, ...], like: Any) -> Any:
    if is_torch(like):
        import torch

        return torch.empty(shape, dtype={"f32": torch.float32, "bf16": torch.bfloat16, "i64": torch.int64}[kind])
    import numpy

    return numpy.empty(shape, dtype={"f32": numpy.float32, "bf16": numpy.uint16, "i64": numpy.int64}[kind])
