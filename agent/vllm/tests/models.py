"""Small checkpoints with random weights, and transformers' answers to prompts in float32."""

import json
import pathlib
import random
from collections.abc import Iterable, Iterator, Sequence

import torch
import transformers

VOCAB = 300  # no multiple of 64, to which vLLM pads
GRANULE_ROWS = 16

SIZES = dict(vocab_size=VOCAB, hidden_size=128, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=4, head_dim=32,
             max_position_embeddings=1024, initializer_range=0.2, num_experts_per_tok=2, tie_word_embeddings=False, use_cache=True,
             bos_token_id=None, eos_token_id=None)
CONFIGS = {
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(**SIZES, num_experts=8, moe_intermediate_size=96, intermediate_size=256, norm_topk_prob=True, decoder_sparse_step=1),
    "mixtral": lambda: transformers.MixtralConfig(**SIZES, num_local_experts=8, intermediate_size=96, sliding_window=None),
}


def make(folder: pathlib.Path, model_type: str, seed: int = 1, hidden: int = SIZES["hidden_size"]) -> None:
    """Writes a checkpoint in float32, with the names of the hub."""
    torch.manual_seed(seed)
    config = CONFIGS[model_type]()
    config.hidden_size = hidden
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:  # norms that are not all ones
                parameter.copy_(1 + 0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder, safe_serialization=True)


def config(folder: pathlib.Path) -> dict:
    return json.loads((folder / "config.json").read_text())


def prompts(seed: int) -> Iterator[list[int]]:
    """Endless prompts of 4 to 90 tokens: some fill blocks of 32, some do not; some share a step, some need several."""
    rng = random.Random(seed)
    while True:
        yield [rng.randrange(VOCAB) for _ in range(rng.choice((4, 9, 31, 32, 33, 64, 90)))]


# Kernels of vLLM and transformers differ by some 1e-6 of the largest logit. If the two best logits are closer than
# this, the token is not decided.
LEAST_GAP = 1e-3


class Oracle:
    def __init__(self, folder: pathlib.Path) -> None:
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._known: dict[tuple[int, ...], tuple[list[int], float]] = {}

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The tokens; AssertionError for a prompt that float32 does not decide."""
        tokens, gap = self.answer(prompt, count)
        assert gap > LEAST_GAP, f"the two best logits of a token are {gap} apart: equality means nothing here, take another prompt"
        return tokens

    def decided(self, prompts: Iterable[Sequence[int]], count: int) -> Iterator[list[int]]:
        """The prompts that float32 decides."""
        return (list(p) for p in prompts if self.answer(p, count)[1] > LEAST_GAP)

    @torch.no_grad()
    def answer(self, prompt: Sequence[int], count: int) -> tuple[list[int], float]:
        """Tokens, and the least gap between the two best logits of one of them."""
        known = self._known.get(tuple(prompt), ([], float("inf")))
        if len(known[0]) == count:
            return known
        ids, past, out, gap = torch.tensor([list(prompt)]), None, [], float("inf")
        for _ in range(count):
            step = self.model(ids, past_key_values=past, use_cache=True)
            best = step.logits[0, -1].topk(2)
            gap = min(gap, float(best.values[0] - best.values[1]))
            out.append(int(best.indices[0]))
            past, ids = step.past_key_values, best.indices[:1].view(1, 1)
        self._known[tuple(prompt)] = out, gap
        return out, gap
