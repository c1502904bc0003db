#!/usr/bin/env python3
"""The bundle runs in an empty root with only /dev/null, /proc and /tmp, first without a driver, then with the recording
one.

    bundle_test.py BUILD    (a tree with everything built; as root, for mounts)
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path()
DRIVER = "libcuda.so.1"


class Bundle(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = pathlib.Path(cls.folder.name) / "root"
        cls.root.mkdir()
        cls.archive = pathlib.Path(cls.folder.name) / "gpu-check.tar.gz"
        subprocess.run([HERE / "bundle.sh", BUILD, cls.archive], check=True, stdout=subprocess.DEVNULL)
        with tarfile.open(cls.archive) as archive:
            cls.names = archive.getnames()
            archive.extractall(cls.root)
        for name in ("dev", "proc", "tmp", "out", "driver"):
            (cls.root / name).mkdir()
        (cls.root / "dev/null").touch()
        # Repeats the command of gpu-check.sh, because the root has no shell.
        line = (HERE / "gpu-check.sh").read_text().splitlines()[-1]
        cls.loader = re.match(r'exec "\$here/(\S+)" --library-path "\$path" "\$here/(\S+)" "\$@"$', line)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def alone(self, *options, timeout=240):
        """Runs the check in its root, with private mounts that end with it."""
        mounts = "mount --bind /dev/null dev/null && mount -t proc proc proc && mount -t tmpfs tmpfs tmp"
        command = ["/gpu-check/" + self.loader[1], "--library-path", "/gpu-check/lib:/driver", "/gpu-check/" + self.loader[2], *options]
        return subprocess.run(["unshare", "--mount", "--propagation", "private", "sh", "-c", f'{mounts} && exec chroot . "$@"', "sh", *command],
                              cwd=self.root, capture_output=True, text=True, timeout=timeout, check=False)

    def give_driver(self):
        there = self.root / "driver" / DRIVER
        there.unlink(missing_ok=True)
        there.write_bytes((BUILD / "agent/device/libfakecuda.so").read_bytes())

    def test_ItIsSmallAndBringsNoDriver(self):
        self.assertLessEqual(self.archive.stat().st_size, 40 << 20)
        self.assertFalse([name for name in self.names if "libcuda" in name])

    def test_WithoutADriverItSaysSoInOneLineAndEndsWith2(self):
        (self.root / "driver" / DRIVER).unlink(missing_ok=True)
        told = self.alone("--small", "--out", "/out")
        self.assertEqual((told.returncode, told.stdout.count("\n"), told.stderr), (2, 1, ""), told)
        self.assertIn("no GPU here", told.stdout)
        self.assertIn(DRIVER, told.stdout)

    def test_EveryActRunsOverTheRecordingDriver(self):
        self.give_driver()
        told = self.alone("--small", "--out", "/out")
        self.assertEqual(told.returncode, 0, told.stdout + told.stderr)
        summary = json.loads((self.root / "out/gpu-results.json").read_text())
        self.assertTrue(summary["recorded"])
        self.assertEqual((summary["wrong"], summary["broken_off"], summary["not_run"]), (0, 0, 0), told.stdout)
        told_of = {}
        for record in summary["records"]:
            told_of.setdefault(record["act"], set()).add(record["kind"])
        names = re.findall(r"^(\S+)", self.alone("--list").stdout, re.MULTILINE)
        self.assertEqual(sorted(told_of), sorted(names))
        for act, kinds in told_of.items():
            self.assertIn("ended", kinds, act)
            self.assertTrue(kinds & {"right", "figure", "fact"}, act)
        tables = (self.root / "out/gpu-results.md").read_text()
        self.assertIn("Recorded driver: figures mean nothing.", tables)
        self.assertNotIn("| missed |", tables)

    def test_ItsScriptFindsTheDriverOfTheMachine(self):
        self.give_driver()
        with tempfile.TemporaryDirectory() as out:
            told = subprocess.run([self.root / "gpu-check/gpu-check.sh", "--small", "--only", "graphs", "conformance", "--out", out], capture_output=True,
                                  text=True, timeout=120, check=False, env=dict(os.environ, LD_LIBRARY_PATH=str(self.root / "driver")))
            self.assertEqual(told.returncode, 0, told.stdout + told.stderr)
            self.assertIn("(recorded)", (pathlib.Path(out) / "gpu-results.md").read_text())

    def test_TheCommandRunsTheBundleThatLiesBesideIfNothingCanBeBuilt(self):
        self.give_driver()
        tree = pathlib.Path(self.folder.name) / "apart/tree"  # without the archive next to it
        (tree / "tests/gpu").mkdir(parents=True)
        shutil.copy(HERE / "check.sh", tree / "tests/gpu")
        # A machine whose files indicate a GPU.
        devices = "mount -t tmpfs tmpfs /dev && mknod /dev/null c 1 3 && touch /dev/nvidiactl"
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", f"{devices} && exec tests/gpu/check.sh --small --only graphs"]

        def run():
            return subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=120, check=False,
                                  env=dict(os.environ, LD_LIBRARY_PATH=str(self.root / "driver")))
        told = run()
        self.assertEqual(told.returncode, 1, told)
        self.assertIn("make gpu-bundle elsewhere makes it", told.stdout)
        shutil.copy(self.archive, tree)
        told = run()
        self.assertEqual(told.returncode, 0, told)
        self.assertIn("runs gpu-check.tar.gz", told.stdout)
        self.assertIn("(recorded)", (tree / "docs/gpu-results.md").read_text())
        self.assertTrue((tree / "docs/gpu-results.json").exists())


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
