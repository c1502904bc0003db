#!/usr/bin/env python3
"""One half of a pair (`pair.py`): memory, and a peer's method to move it. `half.py NAME ROLE ADDRESS BYTES`, ROLE
source or reader.

A peer is a module NAME_peer with `Half(role, address, memory)`:

    memory             whether the class wants `memory`, a numpy array of bytes; else it gets the number of bytes, and
                       nothing is compared
    settings           list of (text, role of the half that starts a transfer)
    least              size of the smallest meaningful transfer, in bytes
    told()             data for the other half, as JSON
    join(told)         receives the data of the other half
    move(setting, offset, bytes)   blocks until the bytes are in the reader's memory, at the source's offset; returns
                       the seconds if it knows better than a clock around it
    version()

The memory is like that of `tangram-transport`: touched private pages of the usual size, with the same bytes. Compared
bytes are cleared, and are used again only after all other memory: by then no cache has them.
"""

import importlib
import json
import mmap
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
PERIOD = 251 * 256  # period in bytes of the pattern in the source's memory


def pattern(offset, size):
    """Bytes i * 31 + i / 251, modulo 256, from i = offset on."""
    import numpy

    i = numpy.arange(offset % PERIOD, offset % PERIOD + PERIOD, dtype=numpy.uint64)
    return numpy.resize((i * numpy.uint64(31) + i // numpy.uint64(251)).astype(numpy.uint8), size)


def memory(role, size):
    import numpy

    out = numpy.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=numpy.uint8)
    out[:] = pattern(0, size) if role == "source" else 0
    return out


def check(bytes_, offset, size):
    """Compares the received bytes, and clears them."""
    import numpy

    came = bytes_[offset : offset + size]
    wrong = numpy.flatnonzero(came != pattern(offset, size))
    if wrong.size:
        raise ValueError(f"{wrong.size} of {size} bytes at {offset} are wrong, the first at {offset + int(wrong[0])}")
    came[:] = 0


def play(half, bytes_, asked, say):
    """Handles request lines until the input ends."""
    say({"told": half.told()})
    half.join(json.loads(asked.readline())["told"])
    say({"version": half.version(), "settings": [words for words, _ in half.settings], "starts": [role for _, role in half.settings], "least": half.least})
    for line in asked:
        want = json.loads(line)
        offset, size = want["offset"], want["bytes"]
        if want["do"] == "move":
            begin = time.monotonic()
            seconds = half.move(want["setting"], offset, size)
            say({"seconds": time.monotonic() - begin if seconds is None else seconds})
        else:
            if half.memory:
                check(bytes_, offset, size)
            say({})


def main():
    name, role, address, size = sys.argv[1:]
    # Libraries may print to stdout: only this program's replies go to the other end.
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)

        def say(answer):
            print(json.dumps(answer), file=out, flush=True)

        try:
            peer = importlib.import_module(f"{name}_peer").Half
            bytes_ = memory(role, int(size)) if peer.memory else int(size)
            play(peer(role, address, bytes_), bytes_, sys.stdin, say)
        except Exception as error:  # a library's exception is reported, and ends only this peer
            say({"error": f"{type(error).__name__}: {error}"})
            os._exit(1)
        os._exit(0)  # skips the exit handlers of libraries


if __name__ == "__main__":
    main()
