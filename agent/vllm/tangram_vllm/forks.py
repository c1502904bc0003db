"""A process whose imports are done once: it forks a program, and the next one when that dies.

It ends with its program's exit code when the program ends on request, and when programs die again and again
(`Patience`), so that its parent learns of it.
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
    """The limit for programs that die young, because later ones would not survive either. In seconds."""

    STEADY = 30.0  # one that lived this long ends the series
    # The wait before the next one, after as many short lives. An engine that is back immediately is still a member of
    # the world, so the first few of a series are not delayed.
    WAITS = (0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 4.0)

    def __init__(self) -> None:
        self._row = 0

    def after(self, lived: float) -> float | None:
        """The wait after one that lived for `lived` and died; None: no other, too many died in a series."""
        self._row = 0 if lived >= self.STEADY else self._row
        if self._row == len(self.WAITS):
            return None
        self._row += 1
        return self.WAITS[self._row - 1]


def prepare(modules: Iterable[str], then: Callable[[], None]) -> None:
    """Imports the modules of a program, and calls `then`. RuntimeError: a thread was started, which no fork would
    have."""
    for module in modules:
        importlib.import_module(module)
    then()
    threads = [pathlib.Path(task, "comm").read_text().strip() for task in pathlib.Path("/proc/self/task").iterdir()]
    if len(threads) > 1:
        raise RuntimeError(f"the imports started threads ({', '.join(threads)}), which a program that is forked would not have: is OMP_NUM_THREADS 1?")
    gc.freeze()  # these objects stay: the collector never visits them, and their pages stay shared


def fork() -> int:
    """Returns the program's process id, or 0 in that process, which dies with this one."""
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
    """Waits for a program's end. A signal to this process is passed on as the request to end.

    Returns the exit code as in a shell, and whether the end was requested. One that `lingers` ends by itself, and gets
    the second signal only.
    """
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
    """Runs `serve` in one process after another, forked from this one after `ready` (`lingers`: see watch).

    Returns the exit code of the last one, and in a forked process its own.
    """
    # The first process of a container gets no signal that it does not wait for.
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
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
