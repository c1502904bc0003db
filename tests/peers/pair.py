#!/usr/bin/env python3
"""Transfers bytes between two network namespaces with another project's software, for `tangram-transport`, which starts
it in the reader's.

It starts two halves (`half.py`), one in each namespace. It answers each line of JSON on stdin with one on stdout; the
first line comes without a request:

    {"version": "1.5.1", "settings": ["...", ...], "least": 0}     settings of a transfer, and its minimum size (bytes)
    {"setting": 0, "offset": 0, "bytes": 1048576}  ->  {"seconds": 0.001}

Received bytes are compared after the time was taken. A missing peer prints {"trouble": "not installed"} and exits with
0, a failing one prints {"trouble": "failed: ..."} and exits with 1. Between requests both halves are stopped (SIGSTOP),
so that their busy loops take no time from others.

    pair.py NAME --source-net FILE --source ADDRESS --reader ADDRESS --bytes N
"""

import argparse
import contextlib
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = HERE.parent.parent / "build" / "peers" / "bin" / "python"  # made by tests/peers/install.sh
PACKAGES = {"nixl": "nixl_cu12", "mooncake": "mooncake", "iperf3": None}  # by peer; None: a program with that name
START_SECONDS, ASK_SECONDS = 90, 60
# /sys shows the interfaces of the network namespace in which it was mounted; UCX reads it.
OWN_SYS = ["unshare", "--mount", "sh", "-c", 'umount --lazy /sys && mount -t sysfs sysfs /sys && exec "$@"', "own-sys"]


class Trouble(Exception):
    """The reason why a peer cannot be measured (any longer)."""


def installed(name):
    package = PACKAGES[name]
    if package is None:
        return shutil.which(name) is not None
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
    return PYTHON.exists() and subprocess.run([PYTHON, "-c", look, package], check=False).returncode == 0


def command(name, role, address, size, net=None):
    """The command that starts a half; `net`: its network namespace, if not this one. It ends with this process, also
    while stopped."""
    python = sys.executable if PACKAGES[name] is None else str(PYTHON)
    half = ["setpriv", "--pdeathsig", "KILL", python, str(HERE / "half.py"), name, role, address, str(size)]
    return ([] if net is None else ["nsenter", f"--net={net}"]) + OWN_SYS + half


class Half:
    """A process that answers lines, or is stopped."""

    def __init__(self, role, words):
        self.role = role
        self.rest = b""
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def tell(self, message):
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # its last output has the reason, or hear() reports its end

    def hear(self, seconds):
        """Returns the next line. Raises Trouble: it reports one, ended, wrote no JSON, or nothing within this many
        seconds."""
        until = time.monotonic() + seconds
        out = self.process.stdout.fileno()
        while b"\n" not in self.rest:
            if not select.select([out], [], [], max(0, until - time.monotonic()))[0]:
                raise Trouble(f"the {self.role} says nothing for {seconds} s")
            some = os.read(out, 1 << 16)
            if not some:
                raise Trouble(f"the {self.role} ended with code {self.process.wait()}")
            self.rest += some
        line, _, self.rest = self.rest.partition(b"\n")
        try:
            answer = json.loads(line)
        except ValueError:
            raise Trouble(f"the {self.role} says {line[:80]!r}") from None
        if "error" in answer:
            raise Trouble(f"{self.role}: {answer['error']}")
        return answer

    def ask(self, message, seconds):
        self.tell(message)
        return self.hear(seconds)

    def stop(self):
        self.process.send_signal(signal.SIGSTOP)
        with contextlib.suppress(ChildProcessError):  # it has ended: the next request reports it
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)  # until it is stopped

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def end(self):
        self.process.kill()
        with self.process:  # closes its pipes and waits for it
            pass


class Pair:
    """Two connected halves, stopped except in `bring`."""

    def __init__(self, source, reader):
        """Takes the commands of the halves."""
        self.halves = {}
        try:
            self.halves["source"] = Half("source", source)
            self.halves["reader"] = Half("reader", reader)
            told = {role: half.hear(START_SECONDS) for role, half in self.halves.items()}
            self.halves["source"].ask(told["reader"], START_SECONDS)
            self.can = self.halves["reader"].ask(told["source"], START_SECONDS)
            self.rest()
        except BaseException:
            self.close()
            raise

    def bring(self, setting, offset, size):
        """Returns the seconds of one transfer, all bytes of which are right."""
        for half in self.halves.values():
            half.go_on()
        starts = self.can["starts"][setting]
        seconds = self.halves[starts].ask({"do": "move", "setting": setting, "offset": offset, "bytes": size}, ASK_SECONDS)["seconds"]
        self.halves["reader"].ask({"do": "check", "offset": offset, "bytes": size}, ASK_SECONDS)
        self.rest()
        return seconds

    def rest(self):
        for half in self.halves.values():
            half.stop()

    def close(self):
        for half in self.halves.values():
            half.end()


def play(pair, asked, out):
    """Answers requests, a line each, until the input ends."""
    print(json.dumps({key: pair.can[key] for key in ("version", "settings", "least")}), file=out, flush=True)
    for line in asked:
        want = json.loads(line)
        print(json.dumps({"seconds": pair.bring(want["setting"], want["offset"], want["bytes"])}), file=out, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=PACKAGES)
    parser.add_argument("--source-net", required=True, help="the source's network namespace, e.g. /proc/PID/ns/net")
    parser.add_argument("--source", required=True, help="the source's address")
    parser.add_argument("--reader", required=True, help="this namespace's")
    parser.add_argument("--bytes", required=True, type=int, help="of memory at either side")
    args = parser.parse_args()
    if not installed(args.name):
        print(f"{args.name} is not installed, so nothing is measured beside it; `make bench-setup` installs it", file=sys.stderr)
        print(json.dumps({"trouble": "not installed"}), flush=True)
        return 0
    try:
        pair = Pair(command(args.name, "source", args.source, args.bytes, args.source_net), command(args.name, "reader", args.reader, args.bytes))
        with contextlib.closing(pair):
            play(pair, sys.stdin, sys.stdout)
    except Trouble as trouble:
        print(f"{args.name}: {trouble}", file=sys.stderr)
        print(json.dumps({"trouble": f"failed: {trouble}"}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
