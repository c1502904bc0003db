"""Tensors of a safetensors checkpoint, and their granules, as bits."""

import json
import mmap
import pathlib

import numpy


class Checkpoint:
    """A checkpoint of bf16 tensors. A granule is gate rows, up rows, and down columns (docs/architecture.md, 8)."""

    def __init__(self, folder: str):
        self._tensors: dict[str, tuple[memoryview, tuple[int, ...]]] = {}
        for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
            with path.open("rb") as file:
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            start = 8 + int.from_bytes(data[:8], "little")
            for name, entry in json.loads(bytes(data[8:start])).items():
                if name != "__metadata__":
                    begin, end = entry["data_offsets"]
                    self._tensors[name] = (data[start + begin : start + end], tuple(entry["shape"]))

    def dense_names(self) -> list[str]:
        return sorted(n for n in self._tensors if ".mlp.experts." not in n)

    def raw(self, name: str) -> tuple[memoryview, tuple[int, ...]]:
        return self._tensors[name]

    def bits(self, name: str) -> numpy.ndarray:
        data, shape = self._tensors[name]
        return numpy.frombuffer(data, numpy.uint16).reshape(shape)

    def rows(self, layer: int, expert: int, start: int, count: int, rows: int) -> list[numpy.ndarray]:
        """A row-major piece: gate and up [count * rows, hidden], down [hidden, count * rows]."""
        gate, up, down = (self.bits(f"model.layers.{layer}.mlp.experts.{expert}.{m}_proj.weight") for m in ("gate", "up", "down"))
        mine = slice(start * rows, (start + count) * rows)
        return [gate[mine], up[mine], down[:, mine]]

    def granules(self, layer: int, expert: int, start: int, count: int, rows: int) -> numpy.ndarray:
        """A granule-major piece: [count, 3, rows, hidden]."""
        gate, up, down = (self.bits(f"model.layers.{layer}.mlp.experts.{expert}.{m}_proj.weight") for m in ("gate", "up", "down"))
        out = [[part[g * rows : (g + 1) * rows] for part in (gate, up, down.T)] for g in range(start, start + count)]
        return numpy.array(out, numpy.uint16)
