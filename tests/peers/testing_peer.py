"""A peer for the tests of the common code: one process reads or writes another's memory through /proc. Some of its
settings make errors."""

import os

SETTINGS = ("read", "write", "moves nothing", "one byte is wrong", "raises", "ends", "hangs")


class Half:
    memory = True
    settings = [(words, "source" if words == "write" else "reader") for words in SETTINGS]
    least = 3

    def __init__(self, role, address, memory):
        self.memory_, self.address = memory, address
        print(f"a library's greeting of the {role}")

    def told(self):
        return {"pid": os.getpid(), "at": self.memory_.ctypes.data}

    def join(self, told):
        self.other = told

    def move(self, setting, offset, size):
        words = SETTINGS[setting]
        here = self.memory_[offset : offset + size]
        print("a library's chatter")
        if words == "raises":
            raise OSError("no such wire")
        if words == "ends":
            os._exit(7)
        if words == "hangs":
            os.read(os.pipe()[0], 1)
        if words == "moves nothing":
            return
        with open(f"/proc/{self.other['pid']}/mem", "r+b" if words == "write" else "rb", buffering=0) as other:
            other.seek(self.other["at"] + offset)
            moved = other.write(here) if words == "write" else other.readinto(here)
        if moved != size:
            raise OSError(f"{moved} of {size} bytes")
        if words == "one byte is wrong":
            here[5] ^= 1

    def version(self):
        return "7"
