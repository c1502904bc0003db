"""Every symbol of vLLM that this package uses besides those of tangram_vllm, checked in the same way."""

from __future__ import annotations

from tangram_vllm.contract import Symbol

_V1, _OPENAI = "vllm.v1.engine.", "vllm.entrypoints.openai."
SYMBOLS = (
    # the engine's interface, as AsyncLLM calls it
    *(Symbol(_V1 + f"core_client:EngineCoreClient.{name}") for name in (
        "add_request_async", "abort_requests_async", "get_output_async", "get_supported_tasks_async", "shutdown")),
    Symbol(_V1 + "async_llm:AsyncLLM.__init__", ("vllm_config", "executor_class", "log_stats", "log_requests"), says="EngineCoreClient.make_async_mp_client("),
    Symbol(_V1 + "async_llm:AsyncLLM._run_output_handler", says="await engine_core.get_output_async()"),
    Symbol("vllm.v1.engine:EngineCoreRequest", ("request_id", "prompt_token_ids", "sampling_params", "cache_salt")),
    Symbol("vllm.v1.engine:EngineCoreOutput", ("request_id", "new_token_ids", "finish_reason", "stop_reason", "new_logprobs")),
    Symbol("vllm.v1.engine:EngineCoreOutputs", ("outputs",)),
    *(Symbol(f"vllm.v1.engine:FinishReason.{name}") for name in ("STOP", "LENGTH", "ABORT", "ERROR")),
    Symbol("vllm:SamplingParams", ("max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop_token_ids", "presence_penalty",
                                   "frequency_penalty", "repetition_penalty", "logit_bias", "bad_words", "allowed_token_ids")),
    Symbol("vllm:SamplingParams.eos_token_id"),
    Symbol("vllm:SamplingParams.update_from_generation_config", says="self._eos_token_id = eos_token_id"),
    # the server
    Symbol("vllm.config:VllmConfig", ("model_config", "structured_outputs_config")),
    Symbol("vllm.engine.arg_utils:AsyncEngineArgs.from_cli_args", ("args",), 1),
    Symbol("vllm.engine.arg_utils:AsyncEngineArgs.create_model_config"),
    Symbol("vllm.engine.arg_utils:AsyncEngineArgs.create_structured_outputs_config"),
    Symbol("vllm.entrypoints.launchers.cli_args:make_arg_parser", ("parser",), 1),
    Symbol("vllm.entrypoints.launchers.cli_args:validate_parsed_serve_args", ("args",), 1),
    Symbol("vllm.entrypoints.launchers.api_server.app_state:init_app_state", ("engine_client", "state", "args", "supported_tasks"), 4),
    Symbol("vllm.entrypoints.serve.exception_handling.register:init_exception_handler", ("app",), 1),
    Symbol("vllm.entrypoints.serve.engine.serving:BaseServing._base_request_id", says='raw_request.headers.get("X-Request-Id")'),
    *(Symbol(module + ":attach_router") for module in (
        _OPENAI + "chat_completion.api_router", _OPENAI + "completion.api_router", _OPENAI + "responses.api_router", "vllm.entrypoints.anthropic.api_router",
        "vllm.entrypoints.serve.tokenize.api_router")),
)
