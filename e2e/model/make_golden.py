#!/usr/bin/env python3
"""Writes golden/<preset>.json: the fp32 results of Hugging Face transformers on a checkpoint of make_checkpoint.py.

Block FP8 weights count as their fp32 values. Run by hand (README.md); needs torch and transformers.

    python3 make_golden.py --preset tiny --seed 1
"""

import argparse
import base64
import json
import pathlib
import random
import tempfile

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

import make_checkpoint
from tensors import FP8_BLOCK

NEW_TOKENS = 32
PROMPT_LENGTHS = [1, 7, 40, 130]  # the last one spans more than two attention chunks of 64
LOGIT_STEPS = [0, 1, 15, 31]  # generated tokens whose complete logits are kept


def prompts(preset: str) -> list:
    rng = random.Random(f"golden/{preset}")
    return [[rng.randrange(256) for _ in range(n)] for n in PROMPT_LENGTHS]


def dequantise(folder: pathlib.Path) -> None:
    """Replaces every matrix of codes and scales by the fp32 matrix of their products; torch decodes the codes."""
    suffix, tensors = "_scale_inv", {}
    for file in folder.glob("*.safetensors"):
        tensors |= load_file(file)
        file.unlink()
    (folder / "model.safetensors.index.json").unlink()
    for name in [name.removesuffix(suffix) for name in tensors if name.endswith(suffix)]:
        scales = tensors.pop(name + suffix)
        rows, cols = tensors[name].shape
        each = scales.repeat_interleave(FP8_BLOCK, 0).repeat_interleave(FP8_BLOCK, 1)[:rows, :cols]
        tensors[name] = tensors[name].float() * each
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))


@torch.no_grad()
def run(model, prompt: list) -> dict:
    """Greedy decoding without a KV cache: each step computes the whole prefix, so the result depends only on the
    definition of the model."""
    tokens, logits, margins = list(prompt), {}, []
    for step in range(NEW_TOKENS):
        last = model(torch.tensor([tokens]), use_cache=False).logits[0, -1].float().numpy()
        best, second = np.sort(last)[::-1][:2]
        margins.append(float(best - second))
        if step in LOGIT_STEPS:
            logits[step] = base64.b64encode(last.astype("<f4").tobytes()).decode()
        tokens.append(int(np.argmax(last)))
    return {"prompt": prompt, "tokens": tokens[len(prompt):], "logits": logits,
            "smallest_margin": min(margins)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", choices=sorted(make_checkpoint.FAMILIES), required=True)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    # CPU only: a CUDA build of torch must not be queried without its driver libraries.
    torch.cuda.is_current_stream_capturing = lambda: False
    with tempfile.TemporaryDirectory() as folder:
        sums = make_checkpoint.write(pathlib.Path(folder), args.preset, args.seed)
        if "quantization_config" in json.loads((pathlib.Path(folder) / "config.json").read_text()):
            dequantise(pathlib.Path(folder))
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager",
            experts_implementation="eager").eval()
        cases = [run(model, p) for p in prompts(args.preset)]
    golden = {
        "preset": args.preset, "seed": args.seed, "checkpoint_sha256": sums,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__,
                     "numpy": np.__version__},
        "logits_format": "base64 of little-endian fp32 [vocab], by index of the generated token",
        "cases": cases,
    }
    out = pathlib.Path(__file__).parent / "golden" / f"{args.preset}.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(golden, indent=1) + "\n")
    for c in cases:
        print(len(c["prompt"]), c["smallest_margin"], c["tokens"])


if __name__ == "__main__":
    main()
