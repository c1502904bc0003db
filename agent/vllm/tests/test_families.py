"""Every family of the tables: a checkpoint with the hub's names, in vLLM, gives transformers' tokens.

Without an agent: weights are in this process, in the agent's format.
"""

import pathlib
import tempfile
import unittest
from collections.abc import Iterable
from itertools import islice

import models
import torch
from safetensors.torch import load_file
from served import TOKENS, Served, greedy, in_order
from tangram_vllm import binding, engine
from tangram_vllm.exchange import LocalExchange
from tangram_vllm.families import FAMILIES, Family, family_of
from tangram_vllm.ops import GRANULE_MAJOR, Operator, Placed, Table
from test_ops import piece

KV_BYTES = 8 << 20


class Memory:
    """Dense tensors and granules of a checkpoint. KeyError: a name that the family's table does not have."""

    def __init__(self, folder: pathlib.Path, config: dict, family: Family, dtype: torch.dtype = torch.float32) -> None:
        tensors = {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
        experts, inner = (next(config[key] for key in keys if key in config) for keys in (family.expert_count, family.inner))
        granules, tables, self.slabs = inner // models.GRANULE_ROWS, {}, []
        for layer in range(config["num_hidden_layers"]):
            placed = []
            for e in range(experts):
                gate, up, down = (tensors.pop(name) for name in family.expert_tensors(layer, e))
                self.slabs.append(piece(torch.cat([gate, up]), down, 0, granules, GRANULE_MAJOR))
                placed.append(Placed(e, granules, self.slabs[-1].data_ptr()))
            tables[layer] = Table(config["hidden_size"], models.GRANULE_ROWS, dtype, GRANULE_MAJOR, placed)
        self.binding = binding.Binding(family, tensors, torch.zeros(KV_BYTES, dtype=torch.uint8), LocalExchange(tables, Operator()))


class FamiliesTest(unittest.TestCase):
    def setUp(self) -> None:
        torch.set_num_threads(1)
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def served(self, family: Family, dtype: torch.dtype, **sizes: int) -> tuple[Served, models.Oracle]:
        folder = self.folder / family.model_type
        models.make(folder, family.model_type, **sizes)
        config = models.config(folder)
        self.assertIs(family_of(config), family)
        self.assertEqual(config["architectures"], [family.architecture])
        self.memory = Memory(folder, config, family, dtype)  # the tables have addresses in it
        binding.bind(self.memory.binding)
        settings = engine.Settings(dtype=str(dtype).removeprefix("torch."), kv_bytes=KV_BYTES, max_model_len=512, max_batch_tokens=128, max_requests=8)
        return Served(engine.make_core(folder, settings)), models.Oracle(folder)

    def test_tokens_of_every_family_are_those_of_transformers(self) -> None:
        for family in FAMILIES:
            with self.subTest(family.model_type):
                served, oracle = self.served(family, torch.float32)
                self.same(served, oracle, oracle.decided(models.prompts(seed=9), TOKENS))

    def test_bfloat16_of_every_family_serves(self) -> None:
        """Other kernels of vLLM, some for AMX alone. Rounding decides some tokens.

        Weights are so wide, and the first step so short, that attention runs first.
        """
        for family in FAMILIES:
            with self.subTest(family.model_type):
                served, oracle = self.served(family, torch.bfloat16, hidden=2048)
                named = {f"f{i}": p for i, p in enumerate(sorted(islice(models.prompts(seed=9), 16), key=len))}
                for name, prompt in named.items():
                    served.add(name, prompt, greedy(1))
                    served.step()
                served.run()
                same = [in_order(served.tokens[name], prompt) == oracle.answer(prompt, 1)[0] for name, prompt in named.items()]
                self.assertGreaterEqual(sum(same), 8, same)  # of 300 words each: none by chance

    def same(self, served: Served, oracle: models.Oracle, prompts: Iterable[list[int]]) -> None:
        named = {f"f{i}": p for i, p in enumerate(islice(prompts, 12))}
        for name, prompt in named.items():
            served.add(name, prompt, greedy())
        served.run()
        for name, prompt in named.items():
            self.assertEqual(in_order(served.tokens[name], prompt), oracle.greedy(prompt, TOKENS), name)

    def test_what_no_table_or_checkpoint_has_is_refused_by_name(self) -> None:
        with self.assertRaisesRegex(ValueError, "'llama' is not supported by tangram_vllm; supported: qwen3_moe, mixtral"):
            family_of({"model_type": "llama"})
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            models.make(folder, "qwen3_moe")
            family = FAMILIES[0]
            memory = Memory(folder, models.config(folder), family)
            dense = memory.binding.dense
            settings = engine.Settings(dtype="float32", kv_bytes=KV_BYTES, max_model_len=512)
            for name, tensor, said in (
                ("model.norm.weight", None, "no tensor model.norm.weight"),
                ("lm_head.weight", torch.zeros(1000, 128), r"lm_head.weight: the model wants shape \(320, 128\)"),
                ("model.layers.1.self_attn.k_proj.weight", dense["model.layers.1.self_attn.k_proj.weight"].bfloat16(), "weights are not converted"),
            ):
                other = {n: t for n, t in dense.items() if n != name} | ({} if tensor is None else {name: tensor})
                binding.bind(binding.Binding(family, other, memory.binding.kv, memory.binding.exchange))
                with self.subTest(name), self.assertRaisesRegex(ValueError, said):
                    engine.make_core(folder, settings)
            binding.bind(memory.binding)
            with self.assertRaisesRegex(ValueError, "block_tokens 16 is no multiple of 32"):
                engine.make_core(folder, engine.Settings(kv_bytes=KV_BYTES, block_tokens=16))
            core = engine.make_core(folder, settings)
            for prompt, sampling, said in (
                ([], greedy(), "a prompt is tokens"), ([300], greedy(), "from 0 to 299"), ([1] * 500, greedy(), "over max_model_len 512"),
                ([1], engine.SamplingParams(n=2, temperature=1), "n is not served"),
                ([1], engine.SamplingParams(prompt_logprobs=1), "prompt_logprobs is not served"),
            ):
                with self.assertRaisesRegex(ValueError, said):
                    engine.new_request(core, "r", prompt, sampling)


if __name__ == "__main__":
    unittest.main()
