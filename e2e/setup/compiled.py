"""Compiles all imports of agent/vllm's engine and of the text server for an image.

    compiled.py OUT FROM=TO...

FROM is a folder here, TO its path in the image; OUT becomes the image's folder of PYTHONPYCACHEPREFIX. The image's
files have no times, so Python must not compare times. Without this each engine would compile 3000 files at its start.
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
        # The innermost folder, because packages may be inside the standard library's.
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
