"""vLLM over a real agent: weights and KV are its memory, and tokens are those of transformers."""

import unittest

from served import Case, greedy
from tangram_vllm import engine, kv, loader


class OneRank(Case):
    def test_tokens_are_those_of_transformers(self) -> None:
        prompts = self.prompts("r", 12, seed=1)
        served = self.served()
        for name, prompt in prompts.items():
            served.add(name, prompt, greedy())
        served.run()
        self.same_as_oracle(served.tokens, prompts)

    def test_every_dense_parameter_is_the_agents_memory(self) -> None:
        model, names = self.rank.client.model, set(self.rank.client.dense_names)
        begin = min(t.data_ptr() for t in self.rank.dense.values())
        for core in self.cores:
            tensors = dict(loader.attached(engine.runner_of(core).get_model()))
            self.assertEqual(len(tensors), len(names))
            self.assertEqual({t.data_ptr() for t in tensors.values()}, {t.data_ptr() for t in self.rank.dense.values()})
            for name, tensor in tensors.items():
                self.assertTrue(self.within(tensor, begin, model.dense_bytes), name)

    def test_kv_is_the_agents_memory_and_pages_are_found_in_it(self) -> None:
        for core, half, kv_format in zip(self.cores, self.halves, self.formats, strict=True):
            kv_format.check(half.nbytes)
            caches = kv.caches_of(core)
            for layer, name in enumerate(sorted(caches)):
                for block, head in ((0, 0), (3, 1), (kv_format.blocks - 1, kv_format.heads - 1)):
                    page = caches[name][block, head]
                    self.assertEqual(page.data_ptr(), half.data_ptr() + kv.page_offset(kv_format, layer, block, head))
                    self.assertEqual(page.numel() * page.element_size(), kv_format.whole_page_bytes)

    def test_a_step_without_tokens_exchanges_in_every_layer(self) -> None:
        self.served().run()
        before = engine.schedule(self.cores[0])
        self.assertEqual(before.total_num_scheduled_tokens, 0)
        self.fragile.left = 3
        engine.compute(self.cores[0], before)
        self.assertEqual(self.fragile.left, 0, "as many exchanges as layers")


class RowMajor(OneRank):
    slab_format = "row-major"


if __name__ == "__main__":
    unittest.main()
