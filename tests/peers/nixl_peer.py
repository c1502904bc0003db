"""NIXL with its UCX backend over TCP. There is one agent per setting, because a backend's configuration belongs to its
agent."""

import base64
import os
import subprocess
import time

# UCX reads these when a backend is made. Without them it would try other transports (shared memory, GPUs), and use the
# loopback's address instead of the wire's.
os.environ["UCX_TLS"] = "tcp"
os.environ.setdefault("UCX_LOG_LEVEL", "error")
os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")

UNIT = 1 << 20
SECONDS = 30  # maximum duration of a transfer
# text, operation, bytes of a descriptor (0: one for all), UCX's configuration
SETTINGS = (
    ("read", "READ", 0, ""),
    ("read in units of 1 MiB", "READ", UNIT, ""),
    ("read, segments of 64 KiB", "READ", 0, "TCP_TX_SEG_SIZE=64k,TCP_RX_SEG_SIZE=64k"),
    ("write", "WRITE", 0, ""),
    ("write in units of 1 MiB", "WRITE", UNIT, ""),
)


def interface(address):
    """The name of the network interface with the address."""
    lines = subprocess.run(["ip", "-oneline", "address", "show", "to", address], check=True, capture_output=True, text=True).stdout.split()
    if len(lines) < 2:
        raise ValueError(f"no interface has {address}")
    return lines[1].partition("@")[0]


class Half:
    memory = True
    settings = [(words, "reader" if operation == "READ" else "source") for words, operation, *_ in SETTINGS]
    least = 0

    def __init__(self, role, address, memory):
        os.environ["UCX_NET_DEVICES"] = interface(address)
        from nixl_cu12._api import nixl_agent, nixl_agent_config

        self.at, self.role = memory.ctypes.data, role
        self.agents = []
        for number, (_, _, _, ucx) in enumerate(SETTINGS):
            agent = nixl_agent(f"{role}{number}", nixl_agent_config(enable_prog_thread=True, backends=[]))
            agent.create_backend("UCX", {"engine_config": ucx} if ucx else {})
            agent.register_memory([(self.at, memory.size, 0, "")], mem_type="DRAM")
            self.agents.append(agent)

    def told(self):
        return {"at": self.at, "agents": [base64.b64encode(agent.get_agent_metadata()).decode() for agent in self.agents]}

    def join(self, told):
        self.other_at = told["at"]
        self.others = [agent.add_remote_agent(base64.b64decode(other)) for agent, other in zip(self.agents, told["agents"], strict=True)]

    def move(self, setting, offset, size):
        words, operation, unit, _ = SETTINGS[setting]
        agent = self.agents[setting]
        starts = range(offset, offset + size, unit or size)
        here, there = (agent.get_xfer_descs([(base + at, unit or size, 0) for at in starts], mem_type="DRAM") for base in (self.at, self.other_at))
        handle = agent.initialize_xfer(operation, here, there, self.others[setting])
        until = time.monotonic() + SECONDS
        state = agent.transfer(handle)
        while state == "PROC" and time.monotonic() < until:
            state = agent.check_xfer_state(handle)
        if state != "DONE":
            raise RuntimeError(f"a transfer ({words}) is {state} after {SECONDS} s at most")
        agent.release_xfer_handle(handle)

    def version(self):
        from importlib.metadata import version

        return version("nixl-cu12")
