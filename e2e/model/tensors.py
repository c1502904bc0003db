"""Tensors of checkpoints with random weights, the same bytes on every machine.

A tensor's values come from Philox4x64 with a key hashed from (seed, tensor name), and turning them into bf16 or FP8
uses only integer arithmetic and single IEEE roundings, no libm.
"""

import dataclasses
import hashlib
import math

import numpy as np

STD = 0.2  # initializer; 0.02 makes all logits alike and the tokens loop
FP8_BLOCK = 128  # rows and columns of a scale's block
FP8_LARGEST = np.float32(448)
QUANTISATION = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                "weight_block_size": [FP8_BLOCK, FP8_BLOCK]}  # in config.json
# Values of the codes 0 .. 126 of F8_E4M3 (without a sign; 127 is NaN): 4 bits of exponent, 3 of mantissa.
FP8_VALUES = np.array([math.ldexp(code & 7, -9) if code < 8 else math.ldexp(8 + (code & 7), (code >> 3) - 10)
                       for code in range(127)], np.float32)


@dataclasses.dataclass(frozen=True)
class Tensor:
    """name, shape, and the kind of its numbers: `weight` (the checkpoint's dtype), `bias` (fp32, about 0), `fp8`
    (F8_E4M3) or `scales` (fp32) of the FP8 tensor `of` with the shape `whole`."""
    name: str
    shape: tuple
    kind: str = "weight"
    of: str = ""
    whole: tuple = ()


def matrix(name: str, rows: int, cols: int, fp8: bool):
    """A matrix; in an FP8 checkpoint it is in FP8, with its scales, named as on the hub."""
    if not fp8:
        yield Tensor(name, (rows, cols))
        return
    yield Tensor(name, (rows, cols), "fp8")
    blocks = tuple((size + FP8_BLOCK - 1) // FP8_BLOCK for size in (rows, cols))
    yield Tensor(name + "_scale_inv", blocks, "scales", name, (rows, cols))


def mlp(prefix: str, inner: int, hidden: int, fp8: bool):
    """Gate, up and down."""
    yield from matrix(prefix + "gate_proj.weight", inner, hidden, fp8)
    yield from matrix(prefix + "up_proj.weight", inner, hidden, fp8)
    yield from matrix(prefix + "down_proj.weight", hidden, inner, fp8)


def dtype_of(tensor: Tensor, dtype: str) -> str:
    return {"weight": dtype, "bias": "float32", "scales": "float32", "fp8": "float8_e4m3fn"}[tensor.kind]


def to_bf16(x: np.ndarray) -> np.ndarray:
    """fp32 -> bf16 bits, round to nearest even; x is finite."""
    bits = x.view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")


def bell(seed: int, name: str, shape: tuple) -> np.ndarray:
    """fp32, bell-shaped (sum of four uniforms, Irwin-Hall), std STD."""
    key = hashlib.sha256(f"tangram/{seed}/{name}".encode()).digest()[:16]
    n = math.prod(shape)
    raw = np.random.Philox(key=int.from_bytes(key, "little")).random_raw(n)
    total = np.zeros(n, np.int32)
    for shift in (0, 16, 32, 48):
        total += ((raw >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.int32)
    centred = (total - 2 * 65535).astype(np.float32)  # exact: |.| < 2^18
    return centred * np.float32(STD / (65536 * math.sqrt(4 / 12)))


def fp8(x: np.ndarray) -> tuple:
    """x [rows, cols] -> (codes uint8 [rows, cols], scales fp32 by block): the largest number of a block becomes the
    largest of F8_E4M3, and the others the nearest code."""
    starts = [range(0, size, FP8_BLOCK) for size in x.shape]
    codes = np.empty(x.shape, np.uint8)
    scales = np.empty([len(s) for s in starts], "<f4")
    halfway = (FP8_VALUES[1:] + FP8_VALUES[:-1]) / np.float32(2)
    for i, row in enumerate(starts[0]):
        for j, col in enumerate(starts[1]):
            at = np.s_[row:row + FP8_BLOCK, col:col + FP8_BLOCK]
            scales[i, j] = np.abs(x[at]).max() / FP8_LARGEST
            nearest = np.searchsorted(halfway, np.abs(x[at]) / scales[i, j])
            codes[at] = nearest + 0x80 * (x[at] < 0)
    return codes, scales


def values(seed: int, tensor: Tensor, dtype: str) -> np.ndarray:
    """The tensor's bytes. Weight vectors (norms) are 1 + std / 2, so that a misplaced one has an effect."""
    if tensor.kind in ("fp8", "scales"):
        name, shape = (tensor.name, tensor.shape) if tensor.kind == "fp8" else (tensor.of, tensor.whole)
        return fp8(bell(seed, name, shape).reshape(shape))[tensor.kind == "scales"]
    x = bell(seed, tensor.name, tensor.shape)
    if tensor.kind == "bias":
        return x.astype("<f4")
    if len(tensor.shape) == 1:
        x = np.float32(1) + np.float32(0.5) * x
    bits = to_bf16(x).reshape(tensor.shape)
    return bits if dtype == "bfloat16" else (bits.astype("<u4") << 16).view("<f4")
