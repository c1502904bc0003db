"""Mooncake's transfer engine over TCP. An engine's settings are process-wide, so there is one engine, and settings
differ only in batches."""

import os

os.environ.setdefault("MC_FORCE_TCP", "1")
os.environ.setdefault("MC_TCP_ENABLE_CONNECTION_POOL", "1")  # otherwise it connects again for each part of a batch
os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
os.environ["MC_TRANSFER_TIMEOUT"] = "30"

PARTS = (1, 2, 4)  # parts of a batch: the number of concurrent connections
SETTINGS = [(f"{operation} in {parts}", operation, parts) for operation in ("read", "write") for parts in PARTS]


class Half:
    memory = True
    settings = [(words, "reader" if operation == "read" else "source") for words, operation, _ in SETTINGS]
    least = 0

    def __init__(self, role, address, memory):
        del role
        from mooncake.engine import TransferEngine

        self.at = memory.ctypes.data
        self.engine = TransferEngine()
        if self.engine.initialize(f"{address}:0", "P2PHANDSHAKE", "tcp", "") != 0:
            raise RuntimeError(f"the engine does not start at {address}")
        if self.engine.register_memory(self.at, memory.size) != 0:
            raise RuntimeError(f"{memory.size} bytes cannot be registered")
        self.address = f"{address}:{self.engine.get_rpc_port()}"

    def told(self):
        return {"at": self.at, "address": self.address}

    def join(self, told):
        self.other_at, self.other = told["at"], told["address"]

    def move(self, setting, offset, size):
        words, operation, parts = SETTINGS[setting]
        part = size // parts
        starts = range(offset, offset + size, part)
        bring = self.engine.batch_transfer_sync_read if operation == "read" else self.engine.batch_transfer_sync_write
        code = bring(self.other, [self.at + at for at in starts], [self.other_at + at for at in starts], [part] * parts)
        if code != 0:
            raise RuntimeError(f"a transfer ({words}) failed with {code}")

    def version(self):
        from importlib.metadata import version

        return version("mooncake-transfer-engine-non-cuda")
