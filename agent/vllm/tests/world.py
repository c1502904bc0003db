"""A world of one pod of real processes: tangram-agent, and tangram-driver to give it a layout."""

import json
import os
import pathlib
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
CXX = pathlib.Path(os.environ.get("TANGRAM_CXX", ROOT / "build/cxx"))
BIN = pathlib.Path(os.environ.get("TANGRAM_BIN", ROOT / "build/bin"))
PATIENCE_S = 120


class World:
    """One agent with one rank. Its engine attaches to `socket` with `token`."""

    def __init__(self, checkpoint: pathlib.Path, granule_rows: int, slab_format: str, kv_bytes: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tangram")
        self.folder = pathlib.Path(self._folder.name)
        self.socket, self.token_file, ready = (self.folder / name for name in ("agent.sock", "token", "ready"))
        self._driver("certificates", "--dir", self.folder / "certs", "--world", "w", "--hosts", "127.0.0.1,localhost", "driver", "agent/p0", "engine/p0")
        config = {
            "world": "w", "pod": "p0", "pod_uid": "uid-p0", "node": "local", "ranks": 1, "memory_bytes": 256 << 20, "kv_bytes": kv_bytes, "spare_banks": 3,
            "granule_rows": granule_rows, "checkpoint": str(checkpoint), "revision": "r1", "slab_format": slab_format, "listen": "127.0.0.1:0",
            "data_listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0", "engine_socket": str(self.socket), "engine_token_file": str(self.token_file),
            "ready_file": str(ready), "in_world_file": str(self.folder / "in-world"), "tls": self._tls("agent-p0"), "log": {"level": "info", "json": True},
        }
        (self.folder / "agent.yaml").write_text(json.dumps(config))
        self._log = (self.folder / "agent.log").open("wb")
        self._agent = subprocess.Popen([CXX / "agent/server/tangram-agent", "--config", self.folder / "agent.yaml"], stdout=self._log, stderr=self._log)
        end = time.monotonic() + PATIENCE_S
        while not ready.exists():
            if self._agent.poll() is not None or time.monotonic() > end:
                said = (self.folder / "agent.log").read_text()[-3000:]
                self.stop()
                raise RuntimeError(f"the agent did not start:\n{said}")
            time.sleep(0.02)
        world = {"world": "w", "agents": [json.loads(ready.read_text())["agent"]], "store": str(self.folder / "store.json"), "tls": self._tls("driver")}
        (self.folder / "world.json").write_text(json.dumps(world))

    @property
    def token(self) -> str:
        return self.token_file.read_text().strip()

    def apply(self) -> subprocess.Popen:
        """Starts to create the layout of one rank; the engine must answer the agent's messages meanwhile."""
        return subprocess.Popen([BIN / "tangram-driver", "apply", "--world-file", self.folder / "world.json", "--ranks", "1", "--mode", "ExpertParallel",
                                 "--spare-banks", "3", "--log-level", "warn"], stdout=subprocess.DEVNULL)

    def stop(self) -> None:
        self._agent.terminate()
        self._agent.wait(PATIENCE_S)
        self._log.close()
        self._folder.cleanup()

    def _tls(self, name: str) -> dict:
        certs = self.folder / "certs"
        return {"ca": str(certs / "ca.crt"), "cert": str(certs / f"{name}.crt"), "key": str(certs / f"{name}.key")}

    def _driver(self, *arguments: object) -> None:
        subprocess.run([BIN / "tangram-driver", *map(str, arguments)], check=True, capture_output=True)
