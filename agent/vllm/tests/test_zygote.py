"""The process that forks engines, with real engines over a real agent."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import models
from tangram_vllm import forks
from world import World

READY_S = 180  # for the first engine, whose zygote imports
AGAIN_S = 180  # a timeout that only a hang reaches


class PatienceTest(unittest.TestCase):
    def test_a_row_of_engines_that_die_young_ends(self) -> None:
        patience = forks.Patience()
        self.assertEqual([patience.after(1.0) for _ in range(9)], [0.0] * 5 + [1.0, 2.0, 4.0, None])

    def test_one_that_lived_long_begins_a_row_anew(self) -> None:
        patience = forks.Patience()
        for _ in range(7):
            patience.after(1.0)
        self.assertEqual([patience.after(forks.Patience.STEADY), *(patience.after(1.0) for _ in range(5))], [0.0] * 5 + [1.0])


class LingerTest(unittest.TestCase):
    def test_one_that_lingers_ends_by_itself_or_by_the_second_signal(self) -> None:
        for by_itself in (True, False):
            program = ("import os, signal, sys, time\nfrom tangram_vllm import forks\n"
                       "def serve():\n    signal.pthread_sigmask(signal.SIG_UNBLOCK, forks.ENDING)\n    print('begun', flush=True)\n"
                       f"    sys.stdin.readline() if {by_itself} else time.sleep(3600)\n    return 7\n"
                       "sys.exit(forks.supervise('x', lambda: None, serve, lingers=True))")
            process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            self.assertEqual(process.stdout.readline(), b"begun\n")
            process.send_signal(signal.SIGTERM)
            while not by_itself and process.poll() is None:
                process.send_signal(signal.SIGTERM)  # two equal signals sent together count as one
            process.communicate(b"end\n")
            self.assertEqual(process.returncode, 7 if by_itself else 128 + signal.SIGTERM)


class ZygoteTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="tangram")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def start(self, *flags: object) -> subprocess.Popen:
        log = (self.folder / "log").open("wb")
        self.addCleanup(log.close)
        process = subprocess.Popen([sys.executable, "-m", "tangram_vllm.zygote", *map(str, flags)], stdout=log, stderr=log)
        self.addCleanup(lambda: (process.kill(), process.wait()))
        return process

    def said(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def pid(self, process: subprocess.Popen, not_this: int, within: float) -> int:
        """The process id of the ready engine."""
        ready, end = self.folder / "ready", time.monotonic() + within
        while time.monotonic() < end:
            if ready.exists() and (pid := json.loads(ready.read_text())["pid"]) != not_this:
                return pid
            self.assertIsNone(process.poll(), self.said())
            time.sleep(0.05)
        raise AssertionError(self.said())

    def test_an_engine_that_is_killed_is_followed_by_another(self) -> None:
        models.make(self.folder / "model", "qwen3_moe")
        world = World(self.folder / "model", models.GRANULE_ROWS, "granule-major", 32 << 20)
        self.addCleanup(world.stop)
        tls = world.folder / "certs"
        process = self.start("--agent-socket", world.socket, "--token-file", world.token_file, "--ready-file", self.folder / "ready", "--max-model-len", 512,
                             "--tls-ca", tls / "ca.crt", "--tls-cert", tls / "engine-p0.crt", "--tls-key", tls / "engine-p0.key")
        first = self.pid(process, 0, READY_S)
        self.assertNotEqual(first, process.pid)
        os.kill(first, signal.SIGKILL)
        second = self.pid(process, first, AGAIN_S)
        self.assertIn(f"engine {first} ended with exit code 137", self.said())
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(AGAIN_S), 0, self.said())
        with self.assertRaises(ProcessLookupError):
            os.kill(second, 0)

    def test_engines_that_die_one_after_another_end_it_with_their_exit_code(self) -> None:
        process = self.start("--agent-socket", self.folder / "nobody", "--token-file", self.folder / "none", "--agent-wait-seconds", 0, "--tls-ca", "none",
                             "--tls-cert", "none", "--tls-key", "none")
        self.assertEqual(process.wait(READY_S), 1, self.said())
        self.assertEqual(self.said().count("ended with exit code 1"), 9, self.said())
        self.assertIn("so does this process", self.said())


if __name__ == "__main__":
    unittest.main()
