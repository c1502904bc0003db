"""What transformers makes of prompts in float32: oracle.py CHECKPOINT, JSON lines {"prompt": [..], "tokens": n} in and {"tokens": [..], "gap": x} out.

gap is the least distance between the two best logits of one of the tokens: below models.LEAST_GAP nobody promises that token.
"""

import json
import pathlib
import sys

import models
import torch


def main(checkpoint: str) -> None:
    torch.set_num_threads(1)  # others use the machine meanwhile
    oracle = models.Oracle(pathlib.Path(checkpoint))
    for line in sys.stdin:
        asked = json.loads(line)
        tokens, gap = oracle.answer(asked["prompt"], asked["tokens"])
        print(json.dumps({"tokens": tokens, "gap": gap}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
