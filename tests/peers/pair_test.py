"""The code between `tangram-transport` and a peer: requests and replies, the comparison of bytes, and that it leaves
nothing behind and disturbs nothing."""

import contextlib
import io
import json
import os
import pathlib
import select
import subprocess
import sys
import unittest
from unittest import mock

import half
import pair
import testing_peer

SIZE = 1 << 20


def commands(name="testing", size=SIZE):
    with mock.patch.dict(pair.PACKAGES, {name: None}):
        return [pair.command(name, role, "127.0.0.1", size) for role in ("source", "reader")]


def setting(words):
    return testing_peer.SETTINGS.index(words)


class Bring(unittest.TestCase):
    def setUp(self):
        self.pair = pair.Pair(*commands())
        self.addCleanup(self.pair.close)

    def fails(self, words, why):
        with self.assertRaisesRegex(pair.Trouble, why):
            self.pair.bring(setting(words), 0, SIZE)

    def test_bytes_come_and_are_compared_whoever_starts(self):
        for words in ("read", "write", "read"):
            self.assertGreater(self.pair.bring(setting(words), 4096, SIZE - 4096), 0)

    def test_what_was_compared_is_cleared_so_that_it_must_come_again(self):
        self.pair.bring(setting("read"), 0, SIZE)
        self.fails("moves nothing", f"reader: ValueError: .* of {SIZE} bytes at 0 are wrong")

    def test_a_wrong_byte_is_found(self):
        self.fails("one byte is wrong", "1 of 1048576 bytes at 0 are wrong, the first at 5")

    def test_what_a_library_raises_is_told(self):
        self.fails("raises", "reader: OSError: no such wire")

    def test_who_ends_is_told(self):
        self.fails("ends", "the reader ended with code 7")

    def test_who_hangs_is_told(self):
        with mock.patch.object(pair, "ASK_SECONDS", 0.1):
            self.fails("hangs", "the reader says nothing for 0.1 s")

    def test_both_stand_still_while_nobody_asks(self):
        def states():
            return [pathlib.Path(f"/proc/{h.process.pid}/stat").read_text().rpartition(")")[2].split()[0] for h in self.pair.halves.values()]

        self.assertEqual(states(), ["T", "T"])
        self.pair.bring(setting("read"), 0, SIZE)
        self.assertEqual(states(), ["T", "T"])


class Start(unittest.TestCase):
    def test_a_hthat_cannot_start_is_told_and_ends_the_other(self):
        made = []

        class Kept(pair.Half):
            def __init__(self, *args):
                super().__init__(*args)
                made.append(self)

        with mock.patch.object(pair, "Half", Kept), self.assertRaisesRegex(pair.Trouble, "reader: ModuleNotFoundError: No module named 'nobody_peer'"):
            pair.Pair(commands()[0], commands("nobody")[1])
        self.assertEqual([h.process.poll() is not None for h in made], [True, True])

    def test_halves_end_with_a_pair_that_is_killed(self):
        script = ("import pair, pair_test, sys\nboth = pair.Pair(*pair_test.commands())\n"
                  "print(*(h.process.pid for h in both.halves.values()), flush=True)\nsys.stdin.read()")
        with subprocess.Popen([sys.executable, "-c", script], cwd=pair.HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            pids = [int(word) for word in process.stdout.readline().split()]
            self.assertEqual(len(pids), 2)
            watched = [os.pidfd_open(pid) for pid in pids]
            process.kill()
        for fd in watched:
            self.assertTrue(select.select([fd], [], [], 20)[0], "a half lives on")
            os.close(fd)

    def test_the_source_is_started_in_its_namespace_and_by_the_python_that_has_the_peer(self):
        start = ["setpriv", "--pdeathsig", "KILL"]
        half = [str(pair.PYTHON), str(pair.HERE / "half.py"), "nixl", "source", "10.0.0.1", "5"]
        self.assertEqual(pair.command("nixl", "source", "10.0.0.1", 5, "/proc/1/ns/net"), ["nsenter", "--net=/proc/1/ns/net", *pair.OWN_SYS, *start, *half])
        self.assertEqual(pair.command("iperf3", "reader", "10.0.0.2", 5)[:-6], [*pair.OWN_SYS, *start])
        self.assertEqual(pair.command("iperf3", "reader", "10.0.0.2", 5)[-6], sys.executable)

    def test_a_half_sees_the_interfaces_of_its_namespace(self):
        words = ["unshare", "--net", *pair.OWN_SYS, "ls", "/sys/class/net"]
        self.assertEqual(subprocess.run(words, check=True, capture_output=True, text=True).stdout.split(), ["lo"])


class Say(unittest.TestCase):
    def main(self, name, asked=""):
        """Returns the exit code, the lines on stdout, and stderr."""
        words = ["pair.py", name, "--source-net", "", "--source", "127.0.0.1", "--reader", "127.0.0.1", "--bytes", str(SIZE)]
        out, err, halves = io.StringIO(), io.StringIO(), dict(zip(("source", "reader"), commands()))
        with (mock.patch.object(sys, "argv", words), mock.patch.object(sys, "stdin", io.StringIO(asked)), contextlib.redirect_stdout(out),
              contextlib.redirect_stderr(err), mock.patch.object(pair, "command", side_effect=lambda _, role, *__: halves[role])):
            code = pair.main()
        return code, [json.loads(line) for line in out.getvalue().splitlines()], err.getvalue()

    def test_what_is_not_installed_is_told_with_what_to_do(self):
        with mock.patch.object(pair, "PYTHON", pathlib.Path("/nothing/python")), mock.patch.object(pair.shutil, "which", return_value=None):
            for name in ("nixl", "mooncake", "iperf3"):
                code, lines, err = self.main(name)
                self.assertEqual((code, lines), (0, [{"trouble": "not installed"}]))
                self.assertIn(f"{name} is not installed", err)
                self.assertIn("make bench-setup", err)

    def test_installed_is_what_can_be_found_by_its_python(self):
        with mock.patch.object(pair, "PYTHON", pathlib.Path(sys.executable)), mock.patch.dict(pair.PACKAGES, {"here": "json", "away": "no_such_package"}):
            self.assertEqual([pair.installed(name) for name in ("here", "away")], [True, False])

    def test_a_line_for_a_line(self):
        asked = [{"setting": setting(words), "offset": 0, "bytes": SIZE} for words in ("read", "write")]
        with mock.patch.object(pair, "installed", return_value=True):
            code, lines, _ = self.main("nixl", "".join(json.dumps(line) + "\n" for line in asked))
        self.assertEqual(code, 0)
        self.assertEqual(lines[0], {"version": "7", "settings": list(testing_peer.SETTINGS), "least": 3})
        self.assertEqual([list(line) for line in lines[1:]], [["seconds"], ["seconds"]])

    def test_trouble_is_said_and_ends_it(self):
        asked = json.dumps({"setting": setting("raises"), "offset": 0, "bytes": SIZE}) + "\n"
        with mock.patch.object(pair, "installed", return_value=True):
            code, lines, err = self.main("nixl", asked * 2)
        self.assertEqual((code, lines[1:]), (1, [{"trouble": "failed: reader: OSError: no such wire"}]))
        self.assertIn("no such wire", err)


class Memory(unittest.TestCase):
    def test_the_pattern_is_that_of_the_bench(self):
        for offset in (0, 1, 250, 64255, 64256, 1 << 20):
            self.assertEqual(half.pattern(offset, 600).tolist(), [(i * 31 + i // 251) % 256 for i in range(offset, offset + 600)])
        self.assertEqual(half.pattern(7, 70000)[64256:].tolist(), half.pattern(7, 70000)[: 70000 - 64256].tolist())


if __name__ == "__main__":
    unittest.main()
