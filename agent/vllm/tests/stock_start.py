"""vLLM as it is, from its start to a first token: stock_start.py CHECKPOINT. Writes "import" and "first_token" as JSON, each once it is done.

Its worker is in the process, nothing is compiled or profiled, and KV has a size: as in an engine of this package, and the quickest that it starts.
"""

import json
import os
import sys

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1", HF_HUB_OFFLINE="1",
                  VLLM_LOGGING_LEVEL="WARNING")


def main(checkpoint: str) -> None:
    from vllm import LLM, SamplingParams

    told = os.fdopen(os.dup(1), "w")  # vLLM's own words go elsewhere
    os.dup2(2, 1)
    print(json.dumps("import"), file=told, flush=True)
    llm = LLM(checkpoint, dtype="float32", enforce_eager=True, kv_cache_memory_bytes=64 << 20, block_size=32, max_model_len=512, max_num_batched_tokens=512,
              max_num_seqs=64, skip_tokenizer_init=True, disable_log_stats=True)
    llm.generate({"prompt_token_ids": [1, 2, 3, 5, 8, 13, 21]}, SamplingParams(temperature=0, max_tokens=1, detokenize=False))
    print(json.dumps("first_token"), file=told, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
