"""vLLM's OpenAI server on a UNIX socket, over a session with the gateway."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import pathlib
import socket
import sys

import uvicorn
import uvloop
from fastapi import FastAPI
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.anthropic.api_router import attach_router as attach_messages
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.entrypoints.openai.chat_completion.api_router import attach_router as attach_chat
from vllm.entrypoints.openai.completion.api_router import attach_router as attach_completions
from vllm.entrypoints.openai.responses.api_router import attach_router as attach_responses
from vllm.entrypoints.serve.exception_handling.register import init_exception_handler
from vllm.entrypoints.serve.tokenize.api_router import attach_router as attach_tokenize
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core_client import EngineCoreClient
from vllm.v1.executor import Executor

from . import selftest
from .core import Core
from .session import Session

BACKLOG = 1024
KEEP_ALIVE_S = 120  # for the gateway's connections; longer than it keeps them


def arguments(given: list[str]) -> argparse.Namespace:
    """The arguments of vLLM's server; `given` are its flags."""
    args = make_arg_parser(FlexibleArgumentParser()).parse_args([*given, "--disable-log-stats"])
    validate_parsed_serve_args(args)
    return args


def serve(tokens: str, text: str, args: argparse.Namespace, ready_file: str = "") -> int:
    """Serves until a signal, or until the gateway ends the session. Returns the exit code."""
    return uvloop.run(_serve(tokens, text, args, ready_file))


async def _serve(tokens: str, text: str, args: argparse.Namespace, ready_file: str) -> int:
    session = await Session.open(tokens)
    try:
        core = Core(session)
        llm = engine(core, session, args)
        selftest.check(llm.renderer.tokenizer, pathlib.Path(args.model))
    except ValueError as error:
        print(f"tangram-front: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    server = uvicorn.Server(uvicorn.Config(await app_of(llm, args), lifespan="off", log_level="warning", access_log=False, timeout_keep_alive=KEEP_ALIVE_S))
    gc.collect()
    gc.freeze()  # imported objects stay, so the collector need not visit them again
    core.ended.add_done_callback(lambda _: setattr(server, "should_exit", True))
    sock = listen(text)
    if ready_file:
        part = pathlib.Path(ready_file + ".part")
        part.write_text(json.dumps({"pid": os.getpid()}))
        part.rename(ready_file)
    await server.serve(sockets=[sock])  # until a signal, or the end of the session
    pathlib.Path(text).unlink(missing_ok=True)
    await session.close()
    if not core.ended.done():
        return 0
    print(f"tangram-front: the session with the gateway ended: {core.ended.result()}", file=sys.stderr, flush=True)
    return 1  # the next server finds the next gateway


async def app_of(llm: AsyncLLM, args: argparse.Namespace) -> FastAPI:
    """vLLM's handlers of the paths that the gateway passes on, and no others: none that configures, profiles or stops
    an engine."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.state.args = args
    for attach in (attach_chat, attach_completions, attach_responses, attach_messages, attach_tokenize):
        attach(app)
    init_exception_handler(app)
    await init_app_state(llm, app.state, args, ("generate",))
    return app


def engine(core: Core, session: Session, args: argparse.Namespace) -> AsyncLLM:
    """AsyncLLM over the core. ValueError: the checkpoint is not that of the world."""
    engine_args = AsyncEngineArgs.from_cli_args(args)
    engine_args.max_model_len = session.max_tokens
    os.environ["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"  # the world's limit applies
    model = engine_args.create_model_config()
    model.quantization = None  # as `vllm launch render`: nothing is computed here, and no device is used
    if model.get_vocab_size() != session.vocabulary:
        raise ValueError(f"{args.model} has a vocabulary of {model.get_vocab_size()}, the world one of {session.vocabulary}: it is another model's")
    config = VllmConfig(model_config=model, structured_outputs_config=engine_args.create_structured_outputs_config())
    EngineCoreClient.make_async_mp_client = staticmethod(lambda *_, **__: core)
    return AsyncLLM(vllm_config=config, executor_class=Executor.get_class(config), log_stats=False, log_requests=False)


def listen(path: str) -> socket.socket:
    pathlib.Path(path).unlink(missing_ok=True)  # left by a server that was killed
    out = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    out.bind(path)
    out.listen(BACKLOG)
    return out


