"""The tokenizer of a checkpoint: its files, and the vocabulary size of the model."""

import json
import pathlib
import shutil


def copy(folder: pathlib.Path, out: pathlib.Path) -> int:
    """Copies the files that transformers reads. Returns the vocabulary size with the added tokens, rounded up to 64 as
    in checkpoints."""
    for file in folder.iterdir():
        if file.name.startswith(("tokenizer", "special_tokens")) or file.suffix == ".jinja":
            shutil.copyfile(file, out / file.name)
    tokenizer = json.loads((out / "tokenizer.json").read_text())
    last = max(*tokenizer["model"]["vocab"].values(), *(token["id"] for token in tokenizer["added_tokens"]))
    return (last + 64) // 64 * 64
