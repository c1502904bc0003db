#!/usr/bin/env python3
"""Writes stand-ins for the missing shared libraries that a folder's libraries link to.

The only torch on PyPI for Linux on x86 links to two GiB of CUDA libraries, which it never calls on a CPU. A stand-in
has the soname, the symbol versions and the linked functions; each returns 100 ("no device"). Never use it on a machine
with a GPU.

    stand_ins.py FOLDER     prints the written names
"""

import collections
import pathlib
import re
import subprocess
import sys
import tempfile

# `readelf -W` prints a symbol as: number, value, size, type, binding, visibility, section, name[@version].
UNDEFINED = re.compile(r"^\s*\d+:\s+\S+\s+\S+\s+\S+\s+(GLOBAL|WEAK)\s+\S+\s+UND\s+([^@\s]+)(?:@([^\s]+))?")
DEFINED = re.compile(r"^\s*\d+:\s+\S+\s+\S+\s+\S+\s+(?:GLOBAL|WEAK|UNIQUE)\s+\S+\s+(?!UND)\S+\s+([^@\s]+)")


def readelf(option, path):
    return subprocess.run(["readelf", "-W", option, path], capture_output=True, text=True, check=True).stdout.splitlines()


def system():
    """Returns soname -> path of the libraries that the dynamic linker finds."""
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    return {name: path for name, path in re.findall(r"^\s*(\S+) \(.*x86-64.*\) => (\S+)$", listed, re.MULTILINE)}


def needs(path):
    """Returns the sonames that a library links to, and symbol version -> soname of the versions that it requires."""
    sonames = [m[1] for line in readelf("-d", path) if (m := re.search(r"\(NEEDED\).*\[(.*)\]", line))]
    versions, file = {}, None
    for line in readelf("--version-info", path):
        if m := re.search(r"File: (\S+)", line):
            file = m[1]
        elif (m := re.search(r"Name: (\S+)\s+Flags", line)) and file:
            versions[m[1]] = file
    return sonames, versions


class StandIns:
    """The required contents of each missing library, collected library by library."""

    def __init__(self, folder):
        self.libraries = sorted(p for p in folder.iterdir() if ".so" in p.name)
        present = {p.name for p in self.libraries}
        found = system()
        self.functions = collections.defaultdict(lambda: collections.defaultdict(set))  # soname -> version or None -> names
        loose, shared = {}, set()  # function without a version -> soname of a stand-in; system libraries in use
        for path in self.libraries:
            sonames, versions = needs(path)
            missing = [s for s in sonames if s not in present and s not in found]
            shared |= {found[s] for s in sonames if s in found and s not in present}
            for version, soname in versions.items():
                if soname in missing:
                    self.functions[soname][version]  # also without a called function
            for soname in missing:
                self.functions[soname]
            for line in readelf("--dyn-syms", path):
                if not (m := UNDEFINED.match(line)):
                    continue
                binding, name, version = m.groups()
                if versions.get(version) in missing:
                    self.functions[versions[version]][version].add(name)
                elif version is None and binding == "GLOBAL" and missing:
                    loose.setdefault(name, missing[0])
        defined = {m[1] for path in [*self.libraries, *sorted(shared)] for line in readelf("--dyn-syms", path) if (m := DEFINED.match(line))}
        for name, soname in loose.items():
            if name not in defined:
                self.functions[soname][None].add(name)

    def write(self, folder):
        """Compiles them into the folder; returns their names."""
        with tempfile.TemporaryDirectory() as work:
            source, script = pathlib.Path(work, "stand_in.c"), pathlib.Path(work, "versions.map")
            for soname, by_version in sorted(self.functions.items()):
                names = sorted(set().union(*by_version.values()))
                source.write_text("".join(f"long {n}(void) {{ return 100; }}\n" for n in names))
                script.write_text("".join(f"{v} {{ global: {' '.join(n + ';' for n in sorted(by_version[v]))} }};\n" for v in sorted(filter(None, by_version))))
                subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-w", "-fno-builtin", "-o", folder / soname, f"-Wl,-soname,{soname}",
                                *([f"-Wl,--version-script={script}"] if script.read_text() else []), source], check=True)
        return sorted(self.functions)


def main():
    if len(sys.argv) != 2 or not pathlib.Path(sys.argv[1]).is_dir():
        print(__doc__.splitlines()[0] + "\nusage: stand_ins.py FOLDER", file=sys.stderr)
        return 2
    folder = pathlib.Path(sys.argv[1])
    print(*StandIns(folder).write(folder), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
