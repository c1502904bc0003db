#!/usr/bin/env python3
"""Writes a checkpoint whose greedy answers are scripts: a real Qwen3-MoE with a real tokenizer.

A word of the prompt selects the script. For tests of text: any engine can give an answer with an EOS, a tool call or
half an emoji.

    python3 scripted.py --tokenizer DIR --out DIR --script 'greet=Hello there!' --script 'call=<tool_call>...'

Method: each token's embedding is a separate dimension. Attention weighs all positions equally (queries are 0) and adds
the numbers of the selecting words; experts add nothing. The head gives each token the number of the token before it in
its script, and the first token of a script also that of its word. So a script has no token twice. A script ends with
the tokenizer's EOS; after it the same script starts again.
"""

import argparse
import itertools
import json
import math
import pathlib
import re
import sys

import numpy as np
import tokenizers
from safetensors import TensorSpec, serialize_file

import tokenizer as tokenizer_files
from qwen3 import PRESETS, config, tensors
from tensors import to_bf16

SCALE = np.float32(64)  # of logits: sampling never chooses another token than the first
WORD = np.float32(5)  # over nine to a few hundred tokens: decides between first tokens only
PRESET = {"layers": 2, "query_heads": 8, "kv_heads": 4, "head_dim": 32, "experts": 8, "top_k": 2, "moe_inner": 128, "shards": 1}


def ids(tokenizer: tokenizers.Tokenizer, text: str) -> list:
    return tokenizer.encode(text, add_special_tokens=False).ids


def words_of(tokenizer: tokenizers.Tokenizer, count: int, used: set) -> list:
    """Returns `count` different tokens of a blank and a word each, none of them in `used`."""
    found = (i for i in range(tokenizer.get_vocab_size()) if i not in used and re.fullmatch(" [a-z]{3,}", tokenizer.decode([i])))
    return list(itertools.islice(found, count))


def tokens_of(tokenizer: tokenizers.Tokenizer, text: str, used: set) -> list:
    """Returns the tokens of a text, of ids:1,2,3 or of words:COUNT."""
    kind, _, rest = text.partition(":")
    if kind == "ids":
        return [int(i) for i in rest.split(",")]
    return words_of(tokenizer, int(rest), used) if kind == "words" else ids(tokenizer, text)


def chain(tokenizer: tokenizers.Tokenizer, scripts: dict, eos: int) -> tuple:
    """Returns each token's successor, each word's tokens and its script's first token, and each word's text. Raises
    ValueError for an impossible script."""
    after, words, seen, texts = {}, {}, {}, {}
    for word, text in scripts.items():
        answer = tokens_of(tokenizer, text, set(after))
        texts[word], tokens = tokenizer.decode(answer, skip_special_tokens=False), [*answer, eos]
        twice = {t for t in tokens if tokens.count(t) > 1}
        if twice:
            raise ValueError(f"script {word}: {[tokenizer.decode([t], skip_special_tokens=False) for t in sorted(twice)]} would come twice")
        for this, following in zip(tokens, tokens[1:]):
            if seen.setdefault(this, following) != following:
                raise ValueError(f"script {word}: another script has another token after {tokenizer.decode([this], skip_special_tokens=False)!r}")
            after[this] = following
        chosen_by = {t[0] for t in (ids(tokenizer, word), ids(tokenizer, " " + word)) if len(t) == 1}
        if not chosen_by:
            raise ValueError(f"script {word}: its word is several tokens")
        words[word] = (sorted(chosen_by), tokens[0])
    return after, words, texts


def numbers(after: dict, words: dict, vocabulary: int, hidden: int) -> dict:
    """Returns the tensors that are not 0, fp32. Dimension 0 is shared by all tokens in no script: a prompt's last token
    is one of them."""
    embedding, head = np.zeros((vocabulary, hidden), np.float32), np.zeros((vocabulary, hidden), np.float32)
    embedding[:, 0] = 1
    for at, (this, following) in enumerate(sorted(after.items()), 1):
        embedding[this, 0], embedding[this, at] = 0, 1
        head[following, at] = SCALE
    first = hidden - len(words)
    attention = {"v": np.zeros((PRESET["kv_heads"] * PRESET["head_dim"], hidden), np.float32),
                 "o": np.zeros((hidden, PRESET["query_heads"] * PRESET["head_dim"]), np.float32)}
    for i, (tokens, begins) in enumerate(words.values()):
        told, heard = first - len(words) + i, first + i  # of the word itself, and of all later tokens
        for token in tokens:
            embedding[token, told] = 1
        attention["v"][i, told] = WORD / math.sqrt(hidden)  # RMSNorm turns a single one into this root
        attention["o"][heard, i] = 1
        head[begins, 0], head[begins, heard] = SCALE, SCALE
    return {"model.embed_tokens.weight": embedding, "lm_head.weight": head, "model.layers.0.self_attn.v_proj.weight": attention["v"],
            "model.layers.0.self_attn.o_proj.weight": attention["o"]}


def write(out: pathlib.Path, tokenizer_folder: pathlib.Path, scripts: dict) -> None:
    out.mkdir(parents=True, exist_ok=True)
    vocabulary = tokenizer_files.copy(tokenizer_folder, out)
    tokenizer = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    eos = json.loads((out / "tokenizer_config.json").read_text())["eos_token"]
    eos = tokenizer.token_to_id(eos if isinstance(eos, str) else eos["content"])
    after, words, texts = chain(tokenizer, scripts, eos)
    hidden = (1 + len(after) + 2 * len(words) + 63) // 64 * 64
    preset = {**PRESETS["demo"], **PRESET, "hidden": hidden}
    said = numbers(after, words, vocabulary, hidden)
    arrays = {t.name: to_bf16(said.get(t.name, np.ones(t.shape, np.float32) if t.name.endswith("norm.weight") else np.zeros(t.shape, np.float32)))
              for t in tensors(preset, vocabulary)}
    serialize_file({name: TensorSpec(dtype="bfloat16", shape=a.shape, data_ptr=a.ctypes.data, data_len=a.nbytes) for name, a in arrays.items()},
                   str(out / "model.safetensors"), {"format": "pt"})
    (out / "config.json").write_text(json.dumps({**config(preset, vocabulary), "eos_token_id": eos}, indent=2, sort_keys=True) + "\n")
    (out / "scripts.json").write_text(json.dumps(texts, ensure_ascii=False, indent=2) + "\n")
    (out / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True, help="folder with tokenizer.json and tokenizer_config.json")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--script", action="append", required=True, metavar="WORD=TEXT", help="the answer to a prompt with this word: a text, ids:1,2,3, or words:COUNT for that many words")
    args = parser.parse_args()
    try:
        write(args.out, args.tokenizer, dict(script.split("=", 1) for script in args.script))
    except ValueError as error:
        print(f"scripted.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
