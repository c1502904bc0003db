"""Shared by the tests over a real agent: two engines of one rank, their steps, and the oracle."""

import pathlib
import tempfile
import unittest
from itertools import islice

import models
import torch
from rank import Rank
from tangram_client import PageCopy, kv_moves
from tangram_vllm import carried, engine, kv, rewind
from tangram_vllm.exchange import BrokenStep
from vllm import SamplingParams
from world import World

TOKENS = 40
KV_BYTES = 32 << 20


def greedy(tokens: int = TOKENS) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)


class Fragile:
    """An exchange that breaks at its n-th call, if set."""

    def __init__(self, whole) -> None:
        self.whole, self.left = whole, None

    def exchange(self, layer, x, ids, weights):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise BrokenStep("a peer is gone")
        return self.whole.exchange(layer, x, ids, weights)


class Served:
    """Steps of a core, and the received tokens: by request, by position, each once."""

    def __init__(self, core) -> None:
        self.core, self.tokens = core, {}

    def add(self, request_id: str, prompt: list[int], sampling: SamplingParams) -> None:
        self.core.scheduler.add_request(engine.new_request(self.core, request_id, prompt, sampling))

    def step(self) -> list[str]:
        """Returns the requests that a broken step started over."""
        scheduled = engine.schedule(self.core)
        try:
            output = engine.compute(self.core, scheduled)
        except BrokenStep:
            return rewind.rewind(self.core, scheduled)
        for produced in engine.update(self.core, scheduled, output):
            for position, token in enumerate(produced.tokens, produced.begin):
                of = self.tokens.setdefault(produced.request_id, {})
                assert position not in of, f"{produced.request_id} has position {position} twice"
                of[position] = token
        return []

    def run(self, steps: int = 10_000) -> None:
        while steps and self.core.scheduler.has_unfinished_requests():
            self.step()
            steps -= 1


def in_order(tokens: dict[int, int], prompt: list[int]) -> list[int]:
    assert sorted(tokens) == list(range(len(prompt), len(prompt) + len(tokens))), sorted(tokens)
    return [tokens[p] for p in sorted(tokens)]


def layered_copies(source, target, blocks):
    """For kv_moves: whole blocks of all layers, (from, to) each."""
    return [PageCopy(0, source.page(0, a, head), source.layer_pages, target.page(0, b, head), target.layer_pages, source.layers, source.block_tokens)
            for a, b in blocks for head in range(source.heads)]


class Case(unittest.TestCase):
    """A world of one rank with two engines, each with half of the KV region: as two ranks that pass requests to each
    other."""

    model_type, slab_format = "qwen3_moe", "granule-major"

    @classmethod
    def setUpClass(cls) -> None:
        torch.set_num_threads(1)
        cls.temporary = tempfile.TemporaryDirectory()
        cls.checkpoint = pathlib.Path(cls.temporary.name, "checkpoint")
        models.make(cls.checkpoint, cls.model_type)
        cls.oracle = models.Oracle(cls.checkpoint)
        cls.world = World(cls.checkpoint, models.GRANULE_ROWS, cls.slab_format, KV_BYTES)
        cls.addClassCleanup(cls.world.stop)
        cls.rank = Rank(cls.world, models.config(cls.checkpoint))
        cls.fragile = Fragile(cls.rank.exchange)
        cls.halves = [cls.rank.kv[: KV_BYTES // 2], cls.rank.kv[KV_BYTES // 2 :]]
        cls.cores, cls.formats = [], []
        for i, half in enumerate(cls.halves):
            folder = pathlib.Path(cls.temporary.name, f"model{i}")
            folder.mkdir()
            cls.cores.append(cls.rank.make_core(folder, half, cls.fragile))
            cls.formats.append(kv.format_of(kv.caches_of(cls.cores[-1])))

    def within(self, tensor: torch.Tensor, begin: int, size: int) -> bool:
        return begin <= tensor.data_ptr() and tensor.data_ptr() + tensor.untyped_storage().nbytes() <= begin + size

    def served(self, i: int = 0) -> Served:
        self.fragile.left = None
        return Served(self.cores[i])

    def prompts(self, prefix: str, count: int, seed: int) -> dict[str, list[int]]:
        """By name; only prompts that float32 decides."""
        taken = islice(self.oracle.decided(models.prompts(seed), TOKENS), count)
        return {f"{prefix}{i}": prompt for i, prompt in enumerate(taken)}

    def same_as_oracle(self, got: dict[str, dict[int, int]], prompts: dict[str, list[int]], tokens: int = TOKENS) -> None:
        for name, prompt in prompts.items():
            self.assertEqual(in_order(got[name], prompt), self.oracle.greedy(prompt, tokens), name)

    def carry(self, requests: list[carried.Carried], source: int = 0, target: int = 1) -> None:
        """As in a flip: blocks are reserved, pages copied, then the requests are served there and dropped here."""
        wire = carried.encode(requests)
        reserved = [carried.reserve(self.cores[target], request) for request in carried.decode(wire)]
        blocks = [pair for one in reserved for pair in zip(one.carried.blocks, one.blocks, strict=True)]
        copies = layered_copies(self.formats[source], self.formats[target], blocks)
        for move in kv_moves([self.formats[source]], self.formats[target], copies):
            self.halves[target][move.target_offset : move.target_offset + move.length] = self.halves[source][move.source_offset : move.source_offset + move.length]
        for one in reserved:
            carried.admit(self.cores[target], one)
        carried.drop(self.cores[source], [request.id for request in requests])
