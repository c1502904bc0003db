"""A process whose imports are done once: it forks a program, and the next one as soon as that dies.

Its exit code is its program's: one that ends because it was asked to ends it too, and so does one that dies again and again (`Patience`), so that whoever
started it sees that.
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
from collections.abc import Callable, Iterable

ENDING = (signal.SIGTERM, signal.SIGINT)
AWAITED = (signal.SIGCHLD, *ENDING)
_PR_SET_PDEATHSIG = 1


class Patience:
    """With programs that die young, which others would not survive either. Seconds."""

    STEADY = 30.0  # one that lived so long is no part of a row
    # Before the next, after so many in a row. An engine that is back at once is the world's member still, so the first of a row find nobody waiting.
    WAITS = (0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 4.0)

    def __init__(self) -> None:
        self._row = 0

    def after(self, lived: float) -> float | None:
        """How long to wait after one that lived so long and died; None: no other, there were too many in a row."""
        self._row = 0 if lived >= self.STEADY else self._row
        if self._row == len(self.WAITS):
            return None
        self._row += 1
        return self.WAITS[self._row - 1]


def prepare(modules: Iterable[str], then: Callable[[], None]) -> None:
    """Imports what a program needs, and does `then`. RuntimeError: a thread was started, which no fork would have."""
    for module in modules:
        importlib.import_module(module)
    then()
    threads = [pathlib.Path(task, "comm").read_text().strip() for task in pathlib.Path("/proc/self/task").iterdir()]
    if len(threads) > 1:
        raise RuntimeError(f"the imports started threads ({', '.join(threads)}), which a program that is forked would not have: is OMP_NUM_THREADS 1?")
    gc.freeze()  # what is here stays: nobody walks through it, and its pages stay shared


def fork() -> int:
    """The program's process, or 0 in it. It dies with this one."""
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


def watch(child: int, lingers: bool = False) -> tuple[int, bool]:
    """Waits for a program's end, which a signal to this process asks it for: exit code as a shell has it, and whether it was asked.
    One that `lingers` ends by itself, and hears of the second signal only."""
    asked = False
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return (code if code >= 0 else 128 - code), asked
        got = signal.sigwait(AWAITED)
        if got in ENDING:
            if asked or not lingers:
                os.kill(child, got)
            asked = True


def supervise(name: str, ready: Callable[[], None], serve: Callable[[], int], lingers: bool = False) -> int:
    """`serve` in one process after another, forked of this one after `ready` (`lingers`: watch). Gives the exit code of the last, and in a forked process
    its own."""
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)  # the first process of a container would not hear what it does not wait for
    ready()
    patience, wait = Patience(), 0.0
    while not signal.sigtimedwait(ENDING, wait):
        begun = time.monotonic()
        child = fork()
        if child == 0:
            return serve()
        code, asked = watch(child, lingers)
        lived = time.monotonic() - begun
        after = None if asked or code == 0 else patience.after(lived)
        then = "so does this process" if after is None else f"the next one starts in {after:.0f} s"
        print(f"{name} {child} ended with exit code {code} after {lived:.1f} s: {then}", file=sys.stderr, flush=True)
        if after is None:
            return code
        wait = after
    return 0
