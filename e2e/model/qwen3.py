"""Qwen3-MoE: presets, config.json, tensors."""

from tensors import FP8_BLOCK, QUANTISATION, STD, Tensor, matrix, mlp

# granule_rows is not in a transformers config: it is the granule size in Tangram, an input of the operator.
# make_checkpoint.py prints it for scripts.
PRESETS = {
    # 64 experts, 4 KV heads and 10 granules are not divisible by 5 or 6, on purpose.
    "demo": dict(layers=6, hidden=256, experts=64, top_k=4, query_heads=12, kv_heads=4,
                 head_dim=32, moe_inner=160, granule_rows=16, norm_topk=True, tied=False,
                 dense_layers=[], shards=4),
    "tiny": dict(layers=3, hidden=64, experts=10, top_k=2, query_heads=6, kv_heads=2,
                 head_dim=16, moe_inner=48, granule_rows=8, norm_topk=True, tied=False,
                 dense_layers=[], shards=2),
    # 1.1 GiB of experts, of which a token needs few: measures the cost of moving them.
    "wide": dict(layers=6, hidden=512, experts=128, top_k=4, query_heads=8, kv_heads=2,
                 head_dim=64, moe_inner=480, granule_rows=48, norm_topk=True, tied=False,
                 dense_layers=[], shards=4),
    # Router weights not renormalised, tied embeddings, three query heads per KV head, a dense layer in the middle,
    # sizes that are no multiple of 16.
    "odd": dict(layers=4, hidden=72, experts=7, top_k=3, query_heads=9, kv_heads=3,
                head_dim=24, moe_inner=40, granule_rows=8, norm_topk=False, tied=True,
                dense_layers=[1], shards=3),
    # Blocks of FP8, with remainders at the edges.
    "fp8": dict(layers=3, hidden=144, experts=6, top_k=2, query_heads=6, kv_heads=2,
                head_dim=24, moe_inner=256, granule_rows=FP8_BLOCK, norm_topk=True, tied=False,
                dense_layers=[1], fp8=True, shards=2),
}
# A large depth: with two spare banks a mode switch takes 12 flips. As many bytes as demo, and as uneven.
PRESETS["deep"] = PRESETS["demo"] | dict(layers=24, hidden=128, experts=32, head_dim=16)
# The depth of Qwen3-235B at a small size: for a mode switch of many flips.
PRESETS["deep94"] = PRESETS["tiny"] | dict(layers=94, experts=8)
# Matrices of a large model's width, to compare the costs of engines; a token reads 50 MB per layer in fp32.
PRESETS["hidden2048"] = dict(layers=8, hidden=2048, experts=64, top_k=8, query_heads=16, kv_heads=4, head_dim=128, moe_inner=256, granule_rows=32,
                             norm_topk=True, tied=False, dense_layers=[], shards=8)
PRESETS["hidden2048-f32"] = PRESETS["hidden2048"] | dict(dtype="float32")
# The numbers of demo in fp32: transformers gives the same results.
PRESETS["demo-f32"] = PRESETS["demo"] | dict(dtype="float32")
DENSE_INNER_FACTOR = 2  # intermediate_size / hidden


def config(p: dict, vocab: int) -> dict:
    """config.json as transformers 5 writes it for Qwen3MoeForCausalLM."""
    out = {
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
        "vocab_size": vocab,
    }
    if p.get("fp8"):
        out["quantization_config"] = QUANTISATION
    return out


def tensors(p: dict, vocab: int):
    """Every tensor, in the order of the network."""
    h, hd, fp8 = p["hidden"], p["head_dim"], p.get("fp8", False)
    yield Tensor("model.embed_tokens.weight", (vocab, h))
    for i in range(p["layers"]):
        layer = f"model.layers.{i}."
        yield Tensor(layer + "input_layernorm.weight", (h,))
        yield from matrix(layer + "self_attn.q_proj.weight", p["query_heads"] * hd, h, fp8)
        yield from matrix(layer + "self_attn.k_proj.weight", p["kv_heads"] * hd, h, fp8)
        yield from matrix(layer + "self_attn.v_proj.weight", p["kv_heads"] * hd, h, fp8)
        yield Tensor(layer + "self_attn.q_norm.weight", (hd,))
        yield Tensor(layer + "self_attn.k_norm.weight", (hd,))
        yield from matrix(layer + "self_attn.o_proj.weight", h, p["query_heads"] * hd, fp8)
        yield Tensor(layer + "post_attention_layernorm.weight", (h,))
        if i in p["dense_layers"]:
            prefixes, inner = [layer + "mlp."], DENSE_INNER_FACTOR * h
        else:
            yield Tensor(layer + "mlp.gate.weight", (p["experts"], h))
            prefixes = [f"{layer}mlp.experts.{e}." for e in range(p["experts"])]
            inner = p["moe_inner"]
        for prefix in prefixes:
            yield from mlp(prefix, inner, h, fp8)
    yield Tensor("model.norm.weight", (h,))
    if not p["tied"]:
        yield Tensor("lm_head.weight", (vocab, h))
