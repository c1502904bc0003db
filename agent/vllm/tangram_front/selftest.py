"""Checks that the tokenizer that transformers chose encodes as the checkpoint's tokenizer.json does.

transformers 5 chooses a tokenizer's class by `model_type` of config.json: files of DeepSeek under another model_type
lost all blanks, without a warning.
"""

from __future__ import annotations

import pathlib
from typing import Any

import tokenizers

TEXT = ("Quick brown foxes, 12345 of them.\n\tdef f(x):  return x ** 2  # twice\nZa\u017c\u00f3\u0142\u0107 g\u0119\u015bl\u0105 ja\u017a\u0144. \u041f\u0440\u0438\u0432\u0435\u0442, "
        "\u043c\u0438\u0440! \u4eca\u65e5\u306f\u826f\u3044\u5929\u6c17\u3067\u3059\u306d\u3002 \u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d\u0924\u0947 "
        "\U0001f469\u200d\U0001f469\u200d\U0001f467 e\u0301 \u2211x\u00b2")


class TokenizerDiffers(ValueError):
    """The message names the first difference."""


def check(tokenizer: Any, folder: pathlib.Path) -> None:
    """Raises TokenizerDiffers. Does nothing for a checkpoint without tokenizer.json."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        return
    own = tokenizers.Tokenizer.from_file(str(file)).encode(TEXT, add_special_tokens=False).ids
    chosen = list(tokenizer.encode(TEXT, add_special_tokens=False))
    if own != chosen:
        at = next((i for i, (a, b) in enumerate(zip(own, chosen, strict=False)) if a != b), min(len(own), len(chosen)))
        raise TokenizerDiffers(f"{type(tokenizer).__name__}, which transformers chose by model_type of {folder / 'config.json'}, encodes a test text in other tokens "
                               f"than {file} does, from token {at} on: is model_type that of the tokenizer?")
