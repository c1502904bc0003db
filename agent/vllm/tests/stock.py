#!/usr/bin/env python3
"""Stock vLLM in this process, without our code: the reference for measurements of a rank.

    stock.py CHECKPOINT [--dtype D] [--core N] [--max-model-len L] [--kv-bytes B] [--ranks N --rank R --port P]

Prints {"ready": true, ...} in a JSON line, with the seconds of its imports and of its start. Then it answers each input
line {"prompts": [[token, ...], ...], "tokens": N} with {"seconds": S, "tokens": [[token, ...], ...]}: N greedy tokens
for each prompt. All are requested together, and S is the wall-clock time to the last. Ends with its input.

With --ranks it is one of N ranks of data parallelism whose experts are spread over all of them
(`--enable-expert-parallel`), and each must get the input. vLLM 0.32 on processors does not support that;
`stock_parallel` lists the additions.
"""

import argparse
import json
import os
import sys
import time


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--core", default="", help="the processor that it computes on; empty: any")
    parser.add_argument("--max-model-len", type=int, default=512)
    parser.add_argument("--kv-bytes", type=int, default=256 << 20)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--port", type=int, default=0, help="where rank 0 waits for the others")
    args = parser.parse_args()
    if args.core:
        os.sched_setaffinity(0, {int(args.core)})
    # Read when vLLM is imported. One process: transfers to another one would count as its cost.
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_OMP_THREADS_BIND=args.core or "nobind", OMP_NUM_THREADS="1", VLLM_LOGGING_LEVEL="ERROR",
                      HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
    if args.ranks > 1:
        os.environ.update(VLLM_DP_SIZE=str(args.ranks), VLLM_DP_RANK=str(args.rank), VLLM_DP_RANK_LOCAL=str(args.rank), VLLM_DP_MASTER_IP="127.0.0.1",
                          VLLM_DP_MASTER_PORT=str(args.port))
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # it prints, and so do libraries

    begin = time.monotonic()
    import torch
    from vllm import LLM, SamplingParams

    torch.set_num_threads(1)
    imported = time.monotonic()
    if args.ranks > 1:
        import stock_parallel

        stock_parallel.patch()
    llm = LLM(model=args.checkpoint, dtype=args.dtype, enforce_eager=True, skip_tokenizer_init=True, max_model_len=args.max_model_len,
              kv_cache_memory_bytes=args.kv_bytes, enable_expert_parallel=args.ranks > 1, distributed_executor_backend="uni")
    print(json.dumps({"ready": True, "import_seconds": imported - begin, "start_seconds": time.monotonic() - imported}), file=out, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        sampling = SamplingParams(temperature=0, max_tokens=asked["tokens"], ignore_eos=True, detokenize=False)
        prompts = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]
        begin = time.monotonic()
        answers = llm.generate(prompts, sampling, use_tqdm=False)
        seconds = time.monotonic() - begin
        print(json.dumps({"seconds": seconds, "tokens": [list(a.outputs[0].token_ids) for a in answers]}), file=out, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
