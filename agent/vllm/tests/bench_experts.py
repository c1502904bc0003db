#!/usr/bin/env python3
"""Milliseconds of a layer of experts: ours, vLLM's fused kernel (with a packed private copy), torch's linear.

Hidden 2048, 64 experts of 768 rows, top 8, one thread. The three take turns in every round, on other rows each time;
prints the median CPU time as JSON lines.

    bench_experts.py [--rounds N]
"""

import argparse
import json
import statistics
import time

import torch
from tangram_vllm.ops import GRANULE_MAJOR, Operator, Placed, Table
from torch.nn import functional
from vllm._custom_ops import cpu_fused_moe, cpu_prepack_moe_weight

HIDDEN, EXPERTS, INNER, TOP_K, GRANULE_ROWS = 2048, 64, 768, 8, 16


def by_linear(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(x.shape, dtype=torch.float32)
    for e in ids.unique().tolist():
        row, k = (ids == e).nonzero(as_tuple=True)
        gate, up = functional.linear(x[row], gate_up[e]).chunk(2, -1)
        y.index_add_(0, row, functional.linear(functional.silu(gate) * up, down[e]).float() * weights[row, k, None])
    return y


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    operator = Operator(1)
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(1)
        gate_up = (torch.randn(EXPERTS, 2 * INNER, HIDDEN) * 0.02).to(dtype)
        down = (torch.randn(EXPERTS, HIDDEN, INNER) * 0.02).to(dtype)
        granules = INNER // GRANULE_ROWS
        parts = [part.reshape(EXPERTS, granules, GRANULE_ROWS, HIDDEN) for part in (*gate_up.chunk(2, 1), down.transpose(1, 2))]
        slabs = torch.stack(parts, 2)
        del parts
        table = Table(HIDDEN, GRANULE_ROWS, dtype, GRANULE_MAJOR, [Placed(e, granules, slabs[e].data_ptr()) for e in range(EXPERTS)])
        packed = [cpu_prepack_moe_weight(weight, "vec") for weight in (gate_up, down)]
        for rows in (1, 16):
            taken: dict[str, list[float]] = {"ours": [], "vllm": [], "linear": []}
            worst = 0.0
            for _ in range(rounds):
                x = torch.randn(rows, HIDDEN).to(dtype)
                scores = torch.randn(rows, EXPERTS).softmax(-1).topk(TOP_K)
                weights, ids = (scores.values / scores.values.sum(-1, keepdim=True)).contiguous(), scores.indices.to(torch.int32).contiguous()
                ours, theirs = torch.zeros(rows, HIDDEN), torch.empty(rows, HIDDEN, dtype=dtype)
                for name, call in (("ours", lambda: operator.add(table, x.float(), ids, weights, ours)),
                                   ("vllm", lambda: cpu_fused_moe(theirs, x, *packed, None, None, weights, ids, "silu", "vec")),
                                   ("linear", lambda: by_linear(x, ids, weights, gate_up, down))):
                    begin = time.process_time()
                    call()
                    taken[name].append((time.process_time() - begin) * 1000)
                worst = max(worst, float((ours - theirs.float()).abs().max() / theirs.float().abs().max()))
            told = {f"{name}_ms": round(statistics.median(times), 2) for name, times in taken.items()}
            print(json.dumps({"dtype": str(dtype).removeprefix("torch."), "rows": rows, **told, "largest_difference_to_vllm": round(worst, 6)}), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
