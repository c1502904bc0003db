"""DeepSeek-V2 and V3: presets, config.json, tensors."""

from tensors import FP8_BLOCK, QUANTISATION, STD, Tensor, matrix, mlp

# mscale over mscale_all_dim scales the table of angles, mscale_all_dim the scores. In published models the two are
# equal, so one preset differs.
YARN = {"beta_fast": 32, "beta_slow": 1, "factor": 16, "original_max_position_embeddings": 64}
PRESETS = {
    # As V2-Lite: queries without a low rank, experts by probability alone.
    "deepseek-v2-lite": dict(
        model="v2", layers=3, hidden=64, experts=10, top_k=2, shared=2, heads=4, q_rank=None, kv_rank=32, nope=16,
        rope=16, value=16, moe_inner=48, granule_rows=8, groups=1, groups_kept=1, method="greedy", scale=1.0,
        yarn=YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}, dense_layers=1, ahead=0, fp8=False,
        shards=2),
    # As V2: only experts of the best groups; sizes that are no multiple of 16, heads that 5 does not divide.
    "deepseek-v2": dict(
        model="v2", layers=4, hidden=72, experts=12, top_k=3, shared=1, heads=6, q_rank=20, kv_rank=24, nope=12,
        rope=8, value=20, moe_inner=40, granule_rows=8, groups=4, groups_kept=2, method="group_limited_greedy",
        scale=2.5, yarn=YARN | {"mscale": 1.0, "mscale_all_dim": 0.707}, dense_layers=1, ahead=0,
        fp8=False, shards=3),
    # As V3: sigmoid scores, a bias for the choice, groups by their best two, block FP8 (with remainders at the edges),
    # and a multi-token prediction layer after the last one, which no engine computes.
    "deepseek-v3": dict(
        model="v3", layers=4, hidden=160, experts=8, top_k=3, shared=1, heads=5, q_rank=48, kv_rank=32, nope=24,
        rope=16, value=28, moe_inner=512, granule_rows=FP8_BLOCK, groups=4, groups_kept=2, method="noaux_tc",
        scale=2.5, yarn=YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}, dense_layers=1, ahead=1, fp8=True,
        shards=3),
}
DENSE_INNER_FACTOR = 2  # intermediate_size / hidden


def config(p: dict, vocab: int) -> dict:
    """config.json as on the hub (V2 as transformers 5 writes it: rope_parameters)."""
    positions = p["yarn"]["factor"] * p["yarn"]["original_max_position_embeddings"]
    out = {
        "architectures": [f"Deepseek{p['model'].upper()}ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
        "first_k_dense_replace": p["dense_layers"],
        "hidden_act": "silu",
        "hidden_size": p["hidden"],
        "initializer_range": STD,
        "intermediate_size": DENSE_INNER_FACTOR * p["hidden"],
        "kv_lora_rank": p["kv_rank"],
        "max_position_embeddings": positions,
        "model_type": f"deepseek_{p['model']}",
        "moe_intermediate_size": p["moe_inner"],
        "moe_layer_freq": 1,
        "n_group": p["groups"],
        "n_routed_experts": p["experts"],
        "n_shared_experts": p["shared"],
        "norm_topk_prob": p["model"] == "v3",
        "num_attention_heads": p["heads"],
        "num_experts_per_tok": p["top_k"],
        "num_hidden_layers": p["layers"],
        "num_key_value_heads": p["heads"],
        "num_nextn_predict_layers": p["ahead"],
        "pad_token_id": None,
        "q_lora_rank": p["q_rank"],
        "qk_nope_head_dim": p["nope"],
        "qk_rope_head_dim": p["rope"],
        "rms_norm_eps": 1e-06,
        "routed_scaling_factor": p["scale"],
        "scoring_func": "sigmoid" if p["model"] == "v3" else "softmax",
        "tie_word_embeddings": False,
        "topk_group": p["groups_kept"],
        "topk_method": p["method"],
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "v_head_dim": p["value"],
        "vocab_size": vocab,
    }
    if p["method"] == "group_limited_greedy":
        out["rope_parameters"] = p["yarn"] | {"rope_theta": 10000.0, "rope_type": "yarn"}
    else:
        out["rope_scaling"], out["rope_theta"] = p["yarn"] | {"type": "yarn"}, 10000
    if p["fp8"]:
        out["quantization_config"] = QUANTISATION
    return out


def tensors(p: dict, vocab: int):
    """Every tensor, in the order of the network."""
    h, heads, kv, fp8 = p["hidden"], p["heads"], p["kv_rank"], p["fp8"]
    yield Tensor("model.embed_tokens.weight", (vocab, h))
    for i in range(p["layers"] + p["ahead"]):
        layer = f"model.layers.{i}."
        if i >= p["layers"]:
            yield Tensor(layer + "enorm.weight", (h,))
            yield Tensor(layer + "hnorm.weight", (h,))
            yield Tensor(layer + "eh_proj.weight", (h, 2 * h))
        attention = layer + "self_attn."
        yield Tensor(layer + "input_layernorm.weight", (h,))
        query = heads * (p["nope"] + p["rope"])
        if p["q_rank"] is None:
            yield from matrix(attention + "q_proj.weight", query, h, fp8)
        else:
            yield from matrix(attention + "q_a_proj.weight", p["q_rank"], h, fp8)
            yield Tensor(attention + "q_a_layernorm.weight", (p["q_rank"],))
            yield from matrix(attention + "q_b_proj.weight", query, p["q_rank"], fp8)
        yield from matrix(attention + "kv_a_proj_with_mqa.weight", kv + p["rope"], h, fp8)
        yield Tensor(attention + "kv_a_layernorm.weight", (kv,))
        yield from matrix(attention + "kv_b_proj.weight", heads * (p["nope"] + p["value"]), kv, fp8)
        yield from matrix(attention + "o_proj.weight", h, heads * p["value"], fp8)
        yield Tensor(layer + "post_attention_layernorm.weight", (h,))
        if i < p["dense_layers"]:
            yield from mlp(layer + "mlp.", DENSE_INNER_FACTOR * h, h, fp8)
            continue
        yield Tensor(layer + "mlp.gate.weight", (p["experts"], h))
        if p["model"] == "v3":
            yield Tensor(layer + "mlp.gate.e_score_correction_bias", (p["experts"],), "bias")
        yield from mlp(layer + "mlp.shared_experts.", p["shared"] * p["moe_inner"], h, fp8)
        for e in range(p["experts"]):
            yield from mlp(f"{layer}mlp.experts.{e}.", p["moe_inner"], h, fp8)
    yield Tensor("model.norm.weight", (h,))
    yield Tensor("lm_head.weight", (vocab, h))
