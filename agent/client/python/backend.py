"""Makes the wheel, with the library in it: a PEP 517 backend without requirements.

    python3 backend.py --library build/cxx/agent/client/libtangram_client.so --out DIR
    pip wheel --config-settings library=.../libtangram_client.so agent/client/python

The same files make the same bytes. The library is linked to protobuf, fmt, OpenSSL and xxHash of the system that it was
built on, so the wheel is for that system: its tag is no manylinux.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import pathlib
import sysconfig
import tomllib
import zipfile
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = "tangram_client"
LIBRARY = "libtangram_client.so.1"
_WHEN = (1980, 1, 1, 0, 0, 0)  # the earliest time of a zip file


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    return project


def _tag() -> str:
    return "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")


def _metadata(project: dict[str, Any]) -> str:
    headers = (
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\nSummary: {project['description']}\n"
        f"Requires-Python: {project['requires-python']}\nDescription-Content-Type: text/markdown\n\n"
    )
    return headers + (HERE / str(project["readme"])).read_text()


def write_wheel(library: str | os.PathLike[str], folder: str | os.PathLike[str]) -> str:
    """Writes the wheel into a folder; returns its name. OSError without the library."""
    project = _project()
    name = f"{PACKAGE}-{project['version']}"
    info = f"{name}.dist-info"
    files: dict[str, bytes] = {}
    for path in sorted((HERE / PACKAGE).iterdir()):
        if path.suffix == ".py" or path.name == "py.typed":
            files[f"{PACKAGE}/{path.name}"] = path.read_bytes()
    files[f"{PACKAGE}/{LIBRARY}"] = pathlib.Path(library).read_bytes()
    files[f"{info}/METADATA"] = _metadata(project).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: tangram\nRoot-Is-Purelib: false\nTag: {_tag()}\n".encode()
    record = ""
    for path_in_wheel, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{path_in_wheel},sha256={digest},{len(data)}\n"
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()

    wheel = f"{name}-{_tag()}.whl"
    out = pathlib.Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    part = out / (wheel + ".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for path_in_wheel, data in files.items():
            entry = zipfile.ZipInfo(path_in_wheel, _WHEN)
            entry.external_attr = (0o755 if path_in_wheel.endswith(LIBRARY) else 0o644) << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    part.replace(out / wheel)
    return wheel


def get_requires_for_build_wheel(config_settings: dict[str, str] | None = None) -> list[str]:
    return []


def build_wheel(wheel_directory: str, config_settings: dict[str, str] | None = None, metadata_directory: str | None = None) -> str:
    library = (config_settings or {}).get("library") or os.environ.get("TANGRAM_CLIENT_LIBRARY")
    if not library:
        raise RuntimeError("which libtangram_client.so? --config-settings library=PATH, or TANGRAM_CLIENT_LIBRARY")
    return write_wheel(library, wheel_directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    print(write_wheel(args.library, args.out))


if __name__ == "__main__":
    main()
