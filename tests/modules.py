#!/usr/bin/env python3
"""Checks that a Go module required by several go.mod files has the same version in all; prints differences and fails.

Otherwise the module and all its dependents (Kubernetes' libraries) would be compiled and linted once per version.
"""

import collections
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def versions(mod):
    """{module: version} that a go.mod builds with, from the output of `go mod edit -json`.

    >>> versions({"Require": [{"Path": "a", "Version": "v1"}, {"Path": "b", "Version": "v0"}, {"Path": "c", "Version": "v0"}],
    ...           "Replace": [{"Old": {"Path": "b"}, "New": {"Path": "b", "Version": "v2"}}, {"Old": {"Path": "c"}, "New": {"Path": "../c"}}]})
    {'a': 'v1', 'b': 'v2'}
    """
    found = {need["Path"]: need["Version"] for need in mod.get("Require") or []}
    for replace in mod.get("Replace") or []:
        found.pop(replace["Old"]["Path"], None)
        if "Version" in replace["New"]:
            found[replace["New"]["Path"]] = replace["New"]["Version"]
    return found


def main():
    asked = collections.defaultdict(lambda: collections.defaultdict(list))  # module -> version -> go.mod
    for file in sorted(ROOT.glob("*/**/go.mod")):
        if {"build", "lint"} & set(file.relative_to(ROOT).parts):  # the linter shares no library with the checked code
            continue
        text = subprocess.run(["go", "mod", "edit", "-json", file], check=True, capture_output=True, text=True).stdout
        for module, version in versions(json.loads(text)).items():
            asked[module][version].append(str(file.relative_to(ROOT)))
    wrong = {module: found for module, found in asked.items() if len(found) > 1}
    for module, found in sorted(wrong.items()):
        print(f"{module} in more than one version (go get {module}@VERSION):", "; ".join(f"{v} in {', '.join(files)}" for v, files in found.items()))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
