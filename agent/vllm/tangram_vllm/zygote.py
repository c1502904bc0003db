"""tangram-vllm with its imports done once: a process that forks the engine, and the next one as soon as that dies.

Of the twelve seconds in which an engine starts most go into imports. Here they are done before the first fork, by a process that has one thread, has
opened nothing and never computes: what it has is memory, which its engines share until they write. It takes the flags of `main`, and its exit code is its
engine's: one that ends because it was asked to ends it too, and so does one that dies again and again (`Patience`), so that whoever started it sees that.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import pathlib
import signal
import sys
import time

from . import main as program

# All that an engine imports, with what the first request of each family would.
MODULES = (
    "tangram_vllm.rank", "tangram_vllm.plugin", "tangram_vllm.experts", "tangram_vllm.loader", "vllm._C", "vllm.v1.worker.cpu_worker",
    "vllm.v1.attention.backends.cpu_attn", "vllm.model_executor.models.qwen3_moe", "vllm.model_executor.models.mixtral",
    "vllm.model_executor.layers.quantization.online.base", "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors",
    "vllm.model_executor.warmup.kernel_warmup", "vllm.v1.worker.gpu.warmup", "transformers.models.auto.configuration_auto",
    "transformers.models.qwen3_moe.configuration_qwen3_moe", "transformers.models.mixtral.configuration_mixtral",
)
AWAITED = (signal.SIGCHLD, *program.ENDING)
_PR_SET_PDEATHSIG = 1


class Patience:
    """With engines that die young, which others would not survive either. Seconds."""

    STEADY = 30.0  # an engine that lived so long is no part of a row
    # Before the next, after so many in a row. An engine that is back at once is the world's member still, so the first of a row find nobody waiting.
    WAITS = (0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 4.0)

    def __init__(self) -> None:
        self._row = 0

    def after(self, lived: float) -> float | None:
        """How long to wait after an engine that lived so long and died; None: no other engine, there were too many in a row."""
        self._row = 0 if lived >= self.STEADY else self._row
        if self._row == len(self.WAITS):
            return None
        self._row += 1
        return self.WAITS[self._row - 1]


def prepare() -> None:
    """Imports what an engine needs, and has vLLM know our classes. RuntimeError: a thread was started, which no fork would have."""
    for module in MODULES:
        importlib.import_module(module)
    from . import plugin

    plugin.register()
    import torch

    torch.compile(prepare)  # nothing is compiled: it makes the tables that vLLM's first use of it would
    threads = [pathlib.Path(task, "comm").read_text().strip() for task in pathlib.Path("/proc/self/task").iterdir()]
    if len(threads) > 1:
        raise RuntimeError(f"the imports started threads ({', '.join(threads)}), which an engine that is forked would not have: is OMP_NUM_THREADS 1?")
    gc.freeze()  # what is here stays: nobody walks through it, and its pages stay shared


def fork() -> int:
    """The engine's process, or 0 in it. It dies with this one."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    return child


def watch(child: int) -> tuple[int, bool]:
    """Waits for an engine's end, which a signal to this process asks it for: exit code as a shell has it, and whether it was asked."""
    asked = False
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return (code if code >= 0 else 128 - code), asked
        got = signal.sigwait(AWAITED)
        if got in program.ENDING:
            asked = True
            os.kill(child, got)


def main(arguments: list[str] | None = None) -> int:
    args = program.flags().parse_args(arguments)
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)  # the first process of a container would not hear what it does not wait for
    prepare()
    patience, wait = Patience(), 0.0
    while not signal.sigtimedwait(program.ENDING, wait):
        begun = time.monotonic()
        child = fork()
        if child == 0:
            return program.serve(args)
        code, asked = watch(child)
        lived = time.monotonic() - begun
        after = None if asked or code == 0 else patience.after(lived)
        then = "so does this process" if after is None else f"the next one starts in {after:.0f} s"
        print(f"tangram-vllm: engine {child} ended with exit code {code} after {lived:.1f} s: {then}", file=sys.stderr, flush=True)
        if after is None:
            return code
        wait = after
    return 0


if __name__ == "__main__":
    sys.exit(main())
