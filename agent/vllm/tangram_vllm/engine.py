"""An EngineCore in this process, and its step in parts: schedule, compute, update. The caller decides between them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from vllm import EngineArgs, SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from . import plugin
from .binding import bound

# A requirement of vLLM's CPU kernels for attention.
BLOCK_MULTIPLE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a world, equal on all ranks. In tokens, except `kv_bytes` (the bytes of the region for blocks)."""

    dtype: str = "bfloat16"  # that of the weights
    kv_bytes: int
    block_tokens: int = 32
    max_model_len: int = 4096
    max_batch_tokens: int = 2048
    max_requests: int = 64


def make_core(model_dir: str | os.PathLike[str], settings: Settings) -> EngineCore:
    """An EngineCore of the bound rank. `model_dir` holds config.json and no weights.

    Nothing is profiled: KV has a size, and every step is eager. ValueError: settings that vLLM or its kernels reject.
    """
    if settings.block_tokens % BLOCK_MULTIPLE:
        raise ValueError(f"block_tokens {settings.block_tokens} is no multiple of {BLOCK_MULTIPLE}, as vLLM's kernels for processors want it")
    if not pathlib.Path(model_dir, "config.json").is_file():
        raise ValueError(f"{model_dir} has no config.json")
    bound()
    plugin.register()
    # vLLM's attention in bfloat16 uses AMX if available. Linux kills (SIGILL) a process that has not requested it.
    # Stock vLLM requests it when it packs weights, which is not done here. Returns False without AMX.
    torch.cpu._init_amx()
    config = EngineArgs(
        model=os.fspath(model_dir), dtype=settings.dtype, load_format="tangram", enforce_eager=True, kv_cache_memory_bytes=settings.kv_bytes,
        block_size=settings.block_tokens, max_model_len=settings.max_model_len, max_num_batched_tokens=settings.max_batch_tokens,
        max_num_seqs=settings.max_requests, distributed_executor_backend="uni", async_scheduling=False, skip_tokenizer_init=True, disable_log_stats=True,
    ).create_engine_config()
    return EngineCore(config, UniProcExecutor, log_stats=False)


def runner_of(core: EngineCore) -> GPUModelRunner:
    """The model runner of the one worker."""
    return core.model_executor.driver_worker.worker.model_runner


def new_request(
    core: EngineCore, request_id: str, tokens: Sequence[int], sampling: SamplingParams, salt: str | None = None, generated: int = 0,
) -> Request:
    """The last `generated` of `tokens` belong to the answer.

    ValueError names a setting that a move would lose, or one that is invalid for this model.
    """
    refused = {"n": sampling.n != 1, "structured_outputs": sampling.structured_outputs is not None, "prompt_logprobs": sampling.prompt_logprobs is not None}
    for name, asked in refused.items():
        if asked:
            raise ValueError(f"request {request_id}: {name} is not served by an engine whose requests move")
    limit, vocabulary = core.vllm_config.model_config.max_model_len, core.vllm_config.model_config.get_vocab_size()
    prompt = len(tokens) - generated
    if prompt < 1 or not all(0 <= token < vocabulary for token in tokens):
        raise ValueError(f"request {request_id}: a prompt is tokens from 0 to {vocabulary - 1}, at least one")
    if prompt + (sampling.max_tokens or 0) > limit:
        raise ValueError(f"request {request_id}: {prompt} tokens and {sampling.max_tokens} more are over max_model_len {limit}")
    request = Request(request_id, list(tokens[:prompt]), sampling, None, cache_salt=salt, block_hasher=core.request_block_hasher)
    if generated:
        request.append_output_token_ids(list(tokens[prompt:]))
    return request


def schedule(core: EngineCore) -> SchedulerOutput:
    """Chooses the work of the next step. Changes the scheduler: `compute` and `update`, or `rewind`, must follow."""
    return core.scheduler.schedule()


def compute(core: EngineCore, scheduled: SchedulerOutput) -> ModelRunnerOutput:
    """Computes the forward pass and samples tokens.

    With nothing scheduled the model's layers of experts exchange all the same: other ranks may need ours. BrokenStep
    passes through, and the step can be undone. Any other exception is vLLM's own: the runner is unusable after it.
    """
    output = core.model_executor.execute_model(scheduled)
    if scheduled.total_num_scheduled_tokens == 0:
        for layer in expert_layers(core):
            _exchange_nothing(core, layer)
    elif output is None:
        _seed_by_position(core)
        with _seeds_of_prefills_kept(core, scheduled):
            output = core.model_executor.sample_tokens(None)
    return output


def _seed_by_position(core: EngineCore) -> None:
    """A seeded request's random numbers depend only on its seed and the position, so they are the same after a move.

    Stock vLLM uses one generator for a whole answer.
    """
    batch = runner_of(core).input_batch
    for index, generator in batch.generators.items():
        request = core.scheduler.requests[batch.req_ids[index]]
        draw = f"{request.sampling_params.seed} {request.num_tokens}"
        generator.manual_seed(int.from_bytes(hashlib.blake2b(draw.encode(), digest_size=8).digest(), "little"))


@contextlib.contextmanager
def _seeds_of_prefills_kept(core: EngineCore, scheduled: SchedulerOutput) -> Iterator[None]:
    """Sets generators aside for requests in the middle of their prefill.

    vLLM samples these too and discards the token. It then rewinds the generator of a seeded one, which CPU generators
    do not support: it raises. Without its generator such a request uses random numbers that need not be reproducible.
    """
    batch = runner_of(core).input_batch
    chunks = [i for i in scheduled.num_scheduled_tokens if core.scheduler.requests[i].is_prefill_chunk]
    aside = {i: generator for i in chunks if (generator := batch.generators.pop(batch.req_id_to_index[i], None)) is not None}
    try:
        yield
    finally:
        for request_id, generator in aside.items():
            batch.generators[batch.req_id_to_index[request_id]] = generator


@dataclass(frozen=True, slots=True)
class Produced:
    """Tokens of a request in a step; `begin` is the first one's position in it, prompt included."""

    request_id: str
    begin: int
    tokens: tuple[int, ...]
    finished: str | None  # vLLM's reason: stop, length, ...
    logprobs: LogprobsLists | None = None  # of each token, if requested


def update(core: EngineCore, scheduled: SchedulerOutput, output: ModelRunnerOutput) -> list[Produced]:
    """The step's results, by request; finished ones have left the scheduler after it."""
    ends = {i: core.scheduler.requests[i].num_tokens for i in scheduled.num_scheduled_tokens}
    produced = []
    for outputs in core.scheduler.update_from_output(scheduled, output).values():
        for one in outputs.outputs:
            finished = None if one.finish_reason is None else str(one.finish_reason)
            produced.append(Produced(one.request_id, ends.get(one.request_id, 0), tuple(one.new_token_ids), finished, one.new_logprobs))
    return produced


def expert_layers(core: EngineCore) -> list[int]:
    """Model layers with experts, in the order of the network."""
    from .experts import TangramExperts, extract_layer_index

    found = [m.layer_name for m in runner_of(core).get_model().modules() if isinstance(m, TangramExperts)]
    return sorted(extract_layer_index(name) for name in found)


def _exchange_nothing(core: EngineCore, layer: int) -> None:
    model = core.vllm_config.model_config
    top_k = next(m.top_k for m in runner_of(core).get_model().modules() if hasattr(m, "top_k"))
    bound().exchange.exchange(layer, torch.zeros(0, model.get_hidden_size(), dtype=model.dtype), torch.zeros(0, top_k, dtype=torch.int32), torch.zeros(0, top_k))
