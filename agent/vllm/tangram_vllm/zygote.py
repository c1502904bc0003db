"""tangram-vllm with its imports done once: a process that forks the engine, and the next one when that dies.

Imports take most of the twelve seconds of an engine's start. Here they are done before the first fork, by a process
that has one thread, has opened no files and never computes: its engines share its memory until they write to it. It
takes the flags of `main`.
"""

from __future__ import annotations

import sys

from . import forks
from . import main as program

MODULES = (
    "tangram_vllm.rank", "tangram_vllm.plugin", "tangram_vllm.experts", "tangram_vllm.loader", "vllm._custom_ops", "vllm.v1.worker.cpu_worker",
    "vllm.v1.attention.backends.cpu_attn", "vllm.model_executor.models.qwen3_moe", "vllm.model_executor.models.mixtral",
    "vllm.model_executor.layers.quantization.online.base", "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors",
    "vllm.model_executor.warmup.kernel_warmup", "vllm.v1.worker.gpu.warmup", "transformers.models.auto.configuration_auto",
    "transformers.models.qwen3_moe.configuration_qwen3_moe", "transformers.models.mixtral.configuration_mixtral",
)


def prepare() -> None:
    """Does the imports of an engine, and registers our classes with vLLM."""

    def then() -> None:
        import torch

        from . import plugin

        plugin.register()
        torch.compile(prepare)  # compiles nothing: it makes the tables that vLLM's first use of it would make

    forks.prepare(MODULES, then)


def main(arguments: list[str] | None = None) -> int:
    args = program.flags().parse_args(arguments)
    return forks.supervise("tangram-vllm: engine", prepare, lambda: program.serve(args))


if __name__ == "__main__":
    sys.exit(main())
