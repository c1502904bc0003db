"""iperf3: the capacity of the wire with one thread at either end. It moves its own bytes, which are not compared."""

import json
import subprocess
import threading

PORT = 5201
STREAMS = (1, 2, 4)


class Half:
    memory = False
    settings = [(f"streams {n}", "reader") for n in STREAMS]
    least = 64 << 20  # its start and end take longer than smaller transfers

    def __init__(self, role, address, size):
        del size
        self.address = address
        if role == "source":
            server = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "iperf3", "--server", "--forceflush", "--bind", address, "--port", str(PORT)],
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            words = []
            while not any("listening" in line for line in words):
                words.append(server.stdout.readline())
                if not words[-1]:
                    raise RuntimeError(f"iperf3 --server: {''.join(words).strip()}")
            threading.Thread(target=lambda: list(server.stdout), daemon=True).start()  # or its output pipe fills

    def told(self):
        return self.address

    def join(self, told):
        self.source = told

    def move(self, setting, offset, size):
        del offset
        words = ["iperf3", "--client", self.source, "--port", str(PORT), "--bind", self.address, "--reverse", "--parallel", str(STREAMS[setting]),
                 "--bytes", str(size), "--length", str(1 << 20), "--connect-timeout", "5000", "--json"]
        report = json.loads(subprocess.run(words, check=False, capture_output=True, text=True, timeout=30).stdout)
        if "error" in report:
            raise RuntimeError(report["error"])
        came = report["end"]["sum_received"]
        return came["seconds"] * size / came["bytes"]

    def version(self):
        return subprocess.run(["iperf3", "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
