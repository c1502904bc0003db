"""Messages between the test's engines: small datagrams over loopback, repeated until they are received."""

import select
import socket
import struct
import time

FRAME = struct.Struct("<QQIIQQ")  # epoch, step, kind, rank, and a vote
WORD, PULLED = 0, 1
PATIENCE_S = 120.0  # no repair in this world: a slow machine must not count as a death


class Mesh:
    """Members of an epoch exchange its frames; those of a later one are kept until this rank is in it."""

    def __init__(self, host: str):
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((host, 0))
        self._socket.setblocking(False)
        self._said: list[tuple[bytes, list[tuple[str, int]]]] = []  # the last few, in case one was lost
        self._heard: dict[tuple[int, int, int], dict[int, tuple[int, int]]] = {}

    @property
    def endpoint(self) -> str:
        host, port = self._socket.getsockname()
        return f"{host}:{port}"

    def listen(self, wait_s: float) -> None:
        ready, _, _ = select.select([self._socket], [], [], wait_s)
        while ready:
            try:
                frame = self._socket.recv(FRAME.size)
            except BlockingIOError:
                return
            epoch, step, kind, rank, *word = FRAME.unpack(frame)
            self._heard.setdefault((epoch, step, kind), {})[rank] = tuple(word)

    def begun(self, epoch: int) -> bool:
        """Whether a member steps in the epoch."""
        return any(heard == epoch for heard, _, _ in self._heard)

    def gather(self, epoch: int, step: int, kind: int, rank: int, endpoints: tuple[str, ...], word: tuple[int, int]) -> list[tuple[int, int]]:
        """The votes of all members, in order of rank."""
        key = (epoch, step, kind)
        others = [(e.rpartition(":")[0], int(e.rpartition(":")[2])) for r, e in enumerate(endpoints) if r != rank]
        self._said = [*self._said[-3:], (FRAME.pack(epoch, step, kind, rank, *word), others)]
        self._heard.setdefault(key, {})[rank] = word
        self._say(self._said[-1:])
        until = time.monotonic() + PATIENCE_S
        while len(self._heard[key]) < len(endpoints):
            before = len(self._heard[key])
            self.listen(0.2)
            if len(self._heard[key]) == before:
                self._say(self._said)
            if time.monotonic() > until:
                raise TimeoutError(f"epoch {epoch}, step {step}: heard of ranks {sorted(self._heard[key])} of {len(endpoints)}")
        words = self._heard[key]
        self._heard = {k: v for k, v in self._heard.items() if k > key}
        return [words[r] for r in range(len(endpoints))]

    def _say(self, frames: list[tuple[bytes, list[tuple[str, int]]]]) -> None:
        for frame, others in frames:
            for other in others:
                self._socket.sendto(frame, other)
