#!/usr/bin/env python3
"""Import rules of the agent's folders, and operations that only some of them may use.

Prints each violation with its place, and exits 1. The order is that of agent/README.md: a folder may import folders
above it.

>>> broken({"agent/kv/plan.cc": '#include "agent/net/stream.h"\\n'})
['agent/kv/plan.cc:1: agent/kv imports agent/net, which stands below it in agent/README.md']
>>> broken({"kernels/hash.h": '#include "agent/device/hash.h"\\n'})
['kernels/hash.h:1: kernels imports agent/device: it stands below all']
>>> broken({"agent/store/a.cc": 'auto d = device::HostDevice::Make();\\n'})
['agent/store/a.cc:1: `HostDevice`: only agent/device knows backends by name']
>>> broken({"agent/store/a.cc": '#include "agent/device/host.h"\\n'})
['agent/store/a.cc:1: `agent/device/host.h`: only agent/device knows backends by name']
>>> broken({"agent/server/a.cc": '#include "agent/device/cuda_context.h"\\n', "agent/client/a_test.cc": 'device::CudaDevice* d;\\n'})
['agent/client/a_test.cc:1: `CudaDevice`: only agent/device knows backends by name', 'agent/server/a.cc:1: `agent/device/cuda_context.h`: only agent/device knows backends by name']
>>> broken({"agent/store/a_test.cc": 'memcpy(a, b, 1);\\n', "agent/net/s.cc": 'n = ::recv(fd, a, 1, 0);\\n'})
[]
>>> broken({"agent/transition/a.cc": '// memcpy(x)\\nstd::memcpy(a, b, n);\\n'})
['agent/transition/a.cc:2: `memcpy`: agent/transition moves no bytes (tests/layers.py says who does)']
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'#include "agent/(\w+)/')
BACKENDS = re.compile(r"\b(HostDevice|GhostDevice|CudaDevice|agent/device/(?:host|ghost|cuda\w*|nccl\w*|ucx\w*|nvml)\.h)\b")
# Calls that copy bytes.
MOVES = re.compile(r"\b(memcpy|memmove|recv|recvmsg|readv|pread|preadv|send|sendmsg|writev|pwrite|sendfile|splice)\s*\(")


def order(readme):
    return re.findall(r"^\| `(\w+)` \|", readme, re.MULTILINE)


def folders():
    return order((ROOT / "agent" / "README.md").read_text())


# Other folders copy no bytes of weights and KV, or copying is their purpose.
MOVERS = {
    "device": "copies", "net": "sockets", "loader": "files", "store": "the file of hashes", "mover": "numbers of a request on the wire",
    "gate": "frames of the engine's socket", "dispatch": "rows of experts and slots of links", "engine": "frames between engines", "vllm": "numbers of 16 bits", "client": "addresses and hashes", "server": "a socket's address",
}


def test(path):
    return path.endswith(("_test.cc", "_fuzz.cc", "_test.c", "testing.h")) or "/testing/" in path


def broken(files):
    """files: {path: text}; returns violations as `path:line: text`."""
    rank = {name: i for i, name in enumerate(folders())}
    out = []
    for path, text in sorted(files.items()):
        parts = path.split("/")
        folder = parts[1] if parts[0] == "agent" and len(parts) > 2 else None
        for number, line in enumerate(text.splitlines(), 1):
            code = line.split("//")[0]
            for name in INCLUDE.findall(code):
                if folder in rank and name in rank and rank[name] > rank[folder] and not test(path):
                    out.append(f"{path}:{number}: agent/{folder} imports agent/{name}, which stands below it in agent/README.md")
                if parts[0] == "kernels":
                    out.append(f"{path}:{number}: kernels imports agent/{name}: it stands below all")
            found = BACKENDS.search(code)
            if found and folder != "device":
                out.append(f"{path}:{number}: `{found[1]}`: only agent/device knows backends by name")
            found = MOVES.search(code)
            if found and folder in rank and folder not in MOVERS and not test(path):
                out.append(f"{path}:{number}: `{found[1]}`: agent/{folder} moves no bytes (tests/layers.py says who does)")
    return out


def main():
    listed = subprocess.run(["git", "ls-files", "agent", "e2e", "kernels"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    wrong = broken({p: (ROOT / p).read_text() for p in listed if p.endswith((".cc", ".h")) and (ROOT / p).exists()})
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
