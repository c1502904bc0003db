"""Compiles all that an engine of agent/vllm and a text server import, for an image.

    compiled.py OUT FROM=TO...

FROM is a folder here, TO where it lies in the image; OUT becomes the folder that PYTHONPYCACHEPREFIX names there. The
image's files have no times, so Python is told not to compare any. Without this each engine would compile 3000 files when it starts, into nowhere.
"""

import importlib.util
import pathlib
import py_compile
import sys

from tangram_front.main import MODULES as FRONT
from tangram_vllm.zygote import MODULES


def main(out: pathlib.Path, places: dict[pathlib.Path, pathlib.PurePosixPath]) -> None:
    for module in (*MODULES, *FRONT):
        importlib.import_module(module)
    sources = {pathlib.Path(file).resolve() for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None)) and file.endswith(".py")}
    done = 0
    for source in sorted(sources):
        # The innermost folder: packages may lie below the standard library.
        within = max((place for place in places if source.is_relative_to(place)), key=lambda place: len(place.parts), default=None)
        if within is None:
            continue  # this script
        target = places[within] / source.relative_to(within)
        name = pathlib.PurePosixPath(importlib.util.cache_from_source(target.name)).name
        to = out.joinpath(*target.parent.parts[1:], name)
        to.parent.mkdir(parents=True, exist_ok=True)
        py_compile.compile(str(source), cfile=str(to), dfile=str(target), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
        done += 1
    print(f"{done} files")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), {pathlib.Path(a).resolve(): pathlib.PurePosixPath(b) for a, b in (argument.split("=") for argument in sys.argv[2:])})
