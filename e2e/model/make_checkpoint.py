#!/usr/bin/env python3
"""Writes a checkpoint with random weights: real sharded safetensors, bf16 (or fp32, or block FP8), config.json.

The same (preset, seed) gives the same bytes on every machine (tensors.py). Presets are those of the families:
qwen3.py, deepseek.py.

    python3 make_checkpoint.py --preset demo --seed 1 --out DIR
"""

import argparse
import hashlib
import json
import math
import pathlib
import sys

from safetensors import TensorSpec, serialize_file

import deepseek
import qwen3
import tokenizer
from tensors import dtype_of, values

FAMILIES = {preset: family for family in (qwen3, deepseek) for preset in family.PRESETS}
VOCAB = 256  # without a tokenizer, tokens are bytes
BYTES = {"float32": 4, "bfloat16": 2, "float8_e4m3fn": 1}


def shard_names(count: int) -> list:
    return [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]


def write(out: pathlib.Path, preset: str, seed: int, tokens: pathlib.Path | None = None) -> dict:
    """Writes the checkpoint, with the tokenizer of the folder `tokens`; returns {file name: sha256}."""
    family = FAMILIES[preset]
    p = family.PRESETS[preset]
    out.mkdir(parents=True, exist_ok=True)
    vocabulary = tokenizer.copy(tokens, out) if tokens else VOCAB
    tensors = list(family.tensors(p, vocabulary))
    dtype = p.get("dtype", "bfloat16")
    sizes = [math.prod(t.shape) * BYTES[dtype_of(t, dtype)] for t in tensors]
    files = shard_names(p["shards"])
    weight_map, shards, filled = {}, [[] for _ in files], 0
    for tensor, size in zip(tensors, sizes):
        i = min(filled * len(files) // sum(sizes), len(files) - 1)
        weight_map[tensor.name] = files[i]
        shards[i].append(tensor)
        filled += size
    for file, shard in zip(files, shards):
        arrays = {tensor: values(seed, tensor, dtype) for tensor in shard}
        specs = {t.name: TensorSpec(dtype=dtype_of(t, dtype), shape=t.shape, data_ptr=a.ctypes.data,
                                    data_len=a.nbytes) for t, a in arrays.items()}
        serialize_file(specs, str(out / file), {"format": "pt"})
    index = {"metadata": {"total_parameters": sum(math.prod(t.shape) for t in tensors), "total_size": sum(sizes)},
             "weight_map": dict(sorted(weight_map.items()))}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    config = family.config(p, vocabulary)
    (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    names = ["config.json", "model.safetensors.index.json", *files]
    return {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in names}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--preset", choices=sorted(FAMILIES), default="demo")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokenizer", type=pathlib.Path, help="folder with tokenizer.json; without one the vocabulary is of bytes")
    args = parser.parse_args()
    for name, digest in write(args.out, args.preset, args.seed, args.tokenizer).items():
        print(f"{digest}  {name}")
    p = FAMILIES[args.preset].PRESETS[args.preset]
    print(f"granule_rows={p['granule_rows']} granules={p['moe_inner'] // p['granule_rows']}",
          file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
