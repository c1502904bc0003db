"""tangram-front: the text server of a gateway. Takes the flags of `vllm serve` that concern text, and two of its own.

Its imports are done once, as the engine's are (tangram_vllm/zygote.py): a killed server is back in the time that its
tokenizer takes.
"""

from __future__ import annotations

import argparse
import signal
import sys

from tangram_vllm import forks

# All imports of a server, including those of its first request.
MODULES = (
    "tangram_front.server", "vllm.entrypoints.openai.chat_completion.serving",
    "vllm.entrypoints.openai.completion.serving", "vllm.entrypoints.anthropic.serving", "vllm.entrypoints.openai.responses.serving",
    "vllm.entrypoints.serve.tokenize.serving", "vllm.platforms.cpu", "transformers.models.auto.tokenization_auto",
)


def flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tangram-front", description="vLLM's OpenAI server with tokens from a Tangram gateway. All other flags are those of vllm serve.", allow_abbrev=False)
    parser.add_argument("--tokens-socket", required=True, help="UNIX socket on which the gateway serves tokens")
    parser.add_argument("--text-socket", required=True, help="UNIX socket on which to serve HTTP")
    parser.add_argument("--ready-file", default="", help="file to write when the server is ready: JSON with its process id; empty: not written")
    return parser


def main(arguments: list[str] | None = None) -> int:
    own, vllms = flags().parse_known_args(arguments)

    def ready() -> None:
        forks.prepare(MODULES, lambda: None)
        from .server import arguments as parse

        parse(vllms)  # a bad flag fails here once, not in every server

    def serve() -> int:
        from .server import arguments as parse
        from .server import serve as run

        signal.pthread_sigmask(signal.SIG_UNBLOCK, forks.ENDING)  # the server has handlers
        return run(own.tokens_socket, own.text_socket, parse(vllms), own.ready_file)

    # The containers of a pod get the signal at the same time, and the gateway serves while it drains: the server ends
    # with the session.
    return forks.supervise("tangram-front: server", ready, serve, lingers=True)


if __name__ == "__main__":
    sys.exit(main())
