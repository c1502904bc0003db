#!/usr/bin/env python3
"""Writes a Qwen3-MoE checkpoint with random weights: real sharded safetensors, bf16 (or fp32).

The same (preset, seed) gives the same bytes on every machine: a tensor's values come from
Philox4x64 with a key hashed from (seed, tensor name), and turning them into bf16 uses only
integer arithmetic and single IEEE roundings, no libm.

    python3 make_checkpoint.py --preset demo --seed 1 --out DIR
"""

import argparse
import hashlib
import json
import math
import pathlib
import sys

import numpy as np
from safetensors import TensorSpec, serialize_file

# granule_rows is not part of a transformers config: it is how the model is cut for a
# tangram, given to the operator; printed here so that scripts can pass it on.
PRESETS = {
    # 64 experts, 4 KV heads and 10 granules do not divide by 5 or 6: wanted.
    "demo": dict(layers=6, hidden=256, experts=64, top_k=4, query_heads=12, kv_heads=4,
                 head_dim=32, moe_inner=160, granule_rows=16, norm_topk=True, tied=False,
                 dense_layers=[], shards=4),
    "tiny": dict(layers=3, hidden=64, experts=10, top_k=2, query_heads=6, kv_heads=2,
                 head_dim=16, moe_inner=48, granule_rows=8, norm_topk=True, tied=False,
                 dense_layers=[], shards=2),
    # 1.1 GiB of experts of which a token needs little: for what it costs to move them.
    "wide": dict(layers=6, hidden=512, experts=128, top_k=4, query_heads=8, kv_heads=2,
                 head_dim=64, moe_inner=480, granule_rows=48, norm_topk=True, tied=False,
                 dense_layers=[], shards=4),
    # Router weights not renormalised, tied embeddings, one KV head for all queries of a
    # third, a dense layer in the middle, sizes that are no multiple of 16.
    "odd": dict(layers=4, hidden=72, experts=7, top_k=3, query_heads=9, kv_heads=3,
                head_dim=24, moe_inner=40, granule_rows=8, norm_topk=False, tied=True,
                dense_layers=[1], shards=3),
}
# The very numbers of demo in fp32: what transformers computes of them is the same.
PRESETS["demo-f32"] = PRESETS["demo"] | dict(dtype="float32")
STD = 0.2  # initialiser; 0.02 makes all logits alike and the tokens loop
VOCAB = 256  # tokens are bytes: no tokenizer needed
DENSE_INNER_FACTOR = 2  # intermediate_size / hidden


def config(p: dict) -> dict:
    """config.json as transformers 5 writes it for Qwen3MoeForCausalLM."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "decoder_sparse_step": 1,
        "dtype": p.get("dtype", "bfloat16"),
        "eos_token_id": None,
        "head_dim": p["head_dim"],
        "hidden_act": "silu",
        "hidden_size": p["hidden"],
        "initializer_range": STD,
        "intermediate_size": DENSE_INNER_FACTOR * p["hidden"],
        "max_position_embeddings": 4096,
        "mlp_only_layers": p["dense_layers"],
        "model_type": "qwen3_moe",
        "moe_intermediate_size": p["moe_inner"],
        "norm_topk_prob": p["norm_topk"],
        "num_attention_heads": p["query_heads"],
        "num_experts_per_tok": p["top_k"],
        "num_hidden_layers": p["layers"],
        "num_key_value_heads": p["kv_heads"],
        "num_local_experts": p["experts"],
        "output_router_logits": False,
        "pad_token_id": None,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "router_aux_loss_coef": 0.001,
        "sliding_window": None,
        "tie_word_embeddings": p["tied"],
        "transformers_version": "5.19.0",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": VOCAB,
    }


def shapes(p: dict):
    """Yields (name, shape) of every tensor, in the order of the network."""
    h, hd = p["hidden"], p["head_dim"]
    yield "model.embed_tokens.weight", (VOCAB, h)
    for i in range(p["layers"]):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", (h,)
        yield layer + "self_attn.q_proj.weight", (p["query_heads"] * hd, h)
        yield layer + "self_attn.k_proj.weight", (p["kv_heads"] * hd, h)
        yield layer + "self_attn.v_proj.weight", (p["kv_heads"] * hd, h)
        yield layer + "self_attn.q_norm.weight", (hd,)
        yield layer + "self_attn.k_norm.weight", (hd,)
        yield layer + "self_attn.o_proj.weight", (h, p["query_heads"] * hd)
        yield layer + "post_attention_layernorm.weight", (h,)
        if i in p["dense_layers"]:
            prefixes, inner = [layer + "mlp."], DENSE_INNER_FACTOR * h
        else:
            yield layer + "mlp.gate.weight", (p["experts"], h)
            prefixes = [f"{layer}mlp.experts.{e}." for e in range(p["experts"])]
            inner = p["moe_inner"]
        for prefix in prefixes:
            yield prefix + "gate_proj.weight", (inner, h)
            yield prefix + "up_proj.weight", (inner, h)
            yield prefix + "down_proj.weight", (h, inner)
    yield "model.norm.weight", (h,)
    if not p["tied"]:
        yield "lm_head.weight", (VOCAB, h)


def to_bf16(x: np.ndarray) -> np.ndarray:
    """fp32 -> bf16 bits, round to nearest even; x is finite."""
    bits = x.view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")


def values(seed: int, name: str, shape: tuple) -> np.ndarray:
    """bf16 bits of one tensor: bell-shaped (sum of four uniforms, Irwin-Hall), std STD; norms
    1 + std/2, so that a norm weight in the wrong place shows."""
    key = hashlib.sha256(f"tangram/{seed}/{name}".encode()).digest()[:16]
    n = math.prod(shape)
    raw = np.random.Philox(key=int.from_bytes(key, "little")).random_raw(n)
    total = np.zeros(n, np.int32)
    for shift in (0, 16, 32, 48):
        total += ((raw >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.int32)
    centred = (total - 2 * 65535).astype(np.float32)  # exact: |.| < 2^18
    unit = np.float32(STD / (65536 * math.sqrt(4 / 12)))
    x = centred * unit
    if len(shape) == 1:
        x = np.float32(1) + np.float32(0.5) * x
    return to_bf16(x).reshape(shape)


def shard_names(count: int) -> list:
    return [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]


def write(out: pathlib.Path, preset: str, seed: int) -> dict:
    """Writes the checkpoint; returns {file name: sha256}."""
    p = PRESETS[preset]
    out.mkdir(parents=True, exist_ok=True)
    tensors = list(shapes(p))
    dtype = p.get("dtype", "bfloat16")
    size = 2 if dtype == "bfloat16" else 4
    total = sum(size * math.prod(shape) for _, shape in tensors)
    files = shard_names(p["shards"])
    weight_map, shards, filled = {}, [{} for _ in files], 0
    for name, shape in tensors:
        i = min(filled * len(files) // total, len(files) - 1)
        weight_map[name] = files[i]
        shards[i][name] = shape
        filled += size * math.prod(shape)
    for file, shard in zip(files, shards):
        arrays = {name: values(seed, name, shape) for name, shape in shard.items()}
        if dtype == "float32":
            arrays = {name: (a.astype("<u4") << 16).view("<f4") for name, a in arrays.items()}
        specs = {name: TensorSpec(dtype=dtype, shape=a.shape, data_ptr=a.ctypes.data,
                                  data_len=a.nbytes) for name, a in arrays.items()}
        serialize_file(specs, str(out / file), {"format": "pt"})
    index = {"metadata": {"total_parameters": total // size, "total_size": total},
             "weight_map": dict(sorted(weight_map.items()))}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    (out / "config.json").write_text(json.dumps(config(p), indent=2, sort_keys=True) + "\n")
    names = ["config.json", "model.safetensors.index.json", *files]
    return {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in names}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="demo")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    for name, digest in write(args.out, args.preset, args.seed).items():
        print(f"{digest}  {name}")
    p = PRESETS[args.preset]
    print(f"granule_rows={p['granule_rows']} granules={p['moe_inner'] // p['granule_rows']}",
          file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
