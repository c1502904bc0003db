"""DLPack capsules by ctypes: the structs of dlpack.h 1.0, their deleters and the capsules' destructors."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any

CPU = 1  # kDLCPU
_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


_Deleter = ctypes.CFUNCTYPE(None, c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", c_void_p), ("deleter", _Deleter)]


class _ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", _Deleter),
        ("flags", c_uint64),
        ("tensor", _Tensor),
    ]


# Objects kept for capsules and their consumers, by the struct's address: the struct, its shape, the memory.
_held: dict[int, tuple[Any, ...]] = {}


def _release(address: int | None, held: dict[int, tuple[Any, ...]] = _held) -> None:
    if address is not None:
        held.pop(address, None)


_deleter = _Deleter(_release)

_api = ctypes.pythonapi
_new = _api.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [c_void_p, ctypes.c_char_p, c_void_p]
# A capsule that is being destroyed is passed as an address: a reference would resurrect it.
_is_valid = _api.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [c_void_p, ctypes.c_char_p]
_pointer = _api.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c_void_p, [c_void_p, ctypes.c_char_p]

# The capsules keep the address of their name.
_NAME, _NAME_VERSIONED = b"dltensor", b"dltensor_versioned"


def _destroy(capsule: int, names: Any = (_NAME, _NAME_VERSIONED), valid: Any = _is_valid, pointer: Any = _pointer, release: Any = _release) -> None:
    """A consumer of the tensor has renamed the capsule, and calls the deleter itself later."""
    for name in names:
        if valid(capsule, name):
            release(pointer(capsule, name))


_destructor = ctypes.PYFUNCTYPE(None, c_void_p)(_destroy)

# Tensors may outlive this module at the end of the process, so these objects are never freed and need no globals.
for _kept in (_held, _deleter, _destructor, _NAME, _NAME_VERSIONED):
    _api.Py_IncRef(ctypes.py_object(_kept))


def capsule(memory: Any, address: int, shape: tuple[int, ...], element: tuple[int, int], readonly: bool, versioned: bool) -> object:
    """A capsule over row-major memory of the CPU. `memory` lives until its consumer has finished.

    A consumer before DLPack 1.0 (`versioned` false) does not learn that memory is read-only.
    """
    extents = (c_int64 * max(len(shape), 1))(*shape)
    steps = (c_int64 * max(len(shape), 1))()
    step = 1
    for i in reversed(range(len(shape))):
        steps[i], step = step, step * shape[i]
    managed: Any = _ManagedVersioned() if versioned else _Managed()
    if versioned:
        managed.major, managed.minor = 1, 0
        managed.flags = _READ_ONLY if readonly else 0
    managed.deleter = _deleter
    tensor = managed.tensor
    tensor.data, tensor.device_type, tensor.device_id = address, CPU, 0
    tensor.ndim, tensor.lanes = len(shape), 1
    tensor.code, tensor.bits = element
    tensor.shape = ctypes.cast(extents, ctypes.POINTER(c_int64))
    tensor.strides = ctypes.cast(steps, ctypes.POINTER(c_int64))
    at = ctypes.addressof(managed)
    _held[at] = (managed, extents, steps, memory)
    name = _NAME_VERSIONED if versioned else _NAME
    return _new(at, name, ctypes.cast(_destructor, c_void_p))
