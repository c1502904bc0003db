"""Requests move from one engine to another in the middle of a step sequence; broken steps are undone."""

import unittest
from itertools import islice

import models
from served import TOKENS, Case, Served, greedy, in_order
from tangram_vllm import carried, engine
from vllm import SamplingParams


def free_blocks(core) -> int:
    return core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


def together(*served: Served) -> dict[str, dict[int, int]]:
    """The tokens of all; each position comes from exactly one of them."""
    out: dict[str, dict[int, int]] = {}
    for one in served:
        for name, tokens in one.tokens.items():
            of = out.setdefault(name, {})
            assert not of.keys() & tokens.keys(), f"{name} was answered twice"
            of.update(tokens)
    return out


class Moves(Case):
    def test_requests_go_on_elsewhere_with_nothing_computed_again(self) -> None:
        prompts = self.prompts("m", 12, seed=2)
        for steps in (1, 2, 17):  # prefills in progress, some not begun (8 are served at a time), all in decode
            with self.subTest(steps=steps):
                here, there = self.served(0), self.served(1)
                for name, prompt in prompts.items():
                    here.add(name, prompt, greedy())
                here.run(steps)
                manifest = carried.manifest(self.cores[0])
                self.assertEqual(len(manifest), 12)
                computed = {request.id: request.computed for request in manifest}
                self.assertTrue(any(computed.values()))
                self.carry(manifest)
                self.assertFalse(self.cores[0].scheduler.has_unfinished_requests())
                first = engine.schedule(self.cores[1])
                for name, at in zip(first.scheduled_cached_reqs.req_ids, first.scheduled_cached_reqs.num_computed_tokens, strict=True):
                    self.assertEqual(at, computed[name], name)
                for produced in engine.update(self.cores[1], first, engine.compute(self.cores[1], first)):
                    there.tokens.setdefault(produced.request_id, {})[produced.begin] = produced.tokens[0]
                there.run()
                here.run()
                self.settle()
                self.same_as_oracle(together(here, there), prompts)

    def test_seeds_and_penalties_survive_a_move(self) -> None:
        sampled = [
            dict(temperature=0.9, seed=7), dict(temperature=0.9, seed=8, top_k=20, top_p=0.9), dict(temperature=0, frequency_penalty=1.5, presence_penalty=0.7),
            dict(temperature=1.1, seed=9, repetition_penalty=1.4, min_tokens=20, logit_bias={5: 2.0}),
        ]
        prompts = list(islice(models.prompts(seed=3), len(sampled)))

        def begin(served: Served, round_: str) -> None:
            for i, (prompt, how) in enumerate(zip(prompts, sampled, strict=True)):
                served.add(f"{round_}{i}", prompt, SamplingParams(max_tokens=TOKENS, ignore_eos=True, **how))

        still = self.served(0)
        begin(still, "s")
        still.run()
        here, there = self.served(0), self.served(1)
        begin(here, "t")
        here.run(13)
        self.carry(carried.manifest(self.cores[0]))
        there.run()
        self.settle()
        moved = together(here, there)
        for i in range(len(sampled)):
            self.assertEqual(moved[f"t{i}"], still.tokens[f"s{i}"], sampled[i])
        self.assertGreater(len({tuple(t.values()) for t in still.tokens.values()}), 3)

    def test_what_a_rank_that_died_had_chosen_is_gone_on_with(self) -> None:
        sampled = [
            dict(temperature=0), dict(temperature=0.9, seed=7), dict(temperature=0, frequency_penalty=1.5, presence_penalty=0.7),
            dict(temperature=1.1, seed=9, repetition_penalty=1.4, min_tokens=20, stop_token_ids=[*range(0, models.VOCAB, 3)]),
        ]
        prompts = list(islice(models.prompts(seed=3), len(sampled)))
        whole = self.served(0)
        for i, (prompt, how) in enumerate(zip(prompts, sampled, strict=True)):
            whole.add(f"w{i}", prompt, SamplingParams(max_tokens=TOKENS, ignore_eos=True, **how))
        whole.run()
        for known in (1, 13):
            again = self.served(1)
            for i, (prompt, how) in enumerate(zip(prompts, sampled, strict=True)):
                answer = in_order(whole.tokens[f"w{i}"], prompt)
                sampling = SamplingParams(max_tokens=TOKENS, ignore_eos=True, **how)
                carried.begin(self.cores[1], engine.new_request(self.cores[1], f"a{known}{i}", prompt + answer[:known], sampling, generated=known))
            again.run()
            for i, prompt in enumerate(prompts):
                rest = again.tokens[f"a{known}{i}"]
                self.assertEqual([rest[p] for p in sorted(rest)], in_order(whole.tokens[f"w{i}"], prompt)[known:], (known, sampled[i]))
        self.settle()
        ended = len(whole.tokens["w3"])
        self.assertTrue(20 < ended < TOKENS, f"{ended} tokens: min_tokens or the stop tokens did nothing")

    def test_stop_tokens_end_a_request_where_it_came_to(self) -> None:
        prompt = next(self.oracle.decided(models.prompts(seed=4), 30))
        tokens = self.oracle.greedy(prompt, 30)
        stop = next(t for i, t in enumerate(tokens) if i >= 12 and t not in tokens[:i])
        here, there = self.served(0), self.served(1)
        here.add("stop", prompt, SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, stop_token_ids=[stop]))
        here.run(5)
        self.carry(carried.manifest(self.cores[0]))
        there.run()
        self.settle()
        self.assertEqual(list(together(here, there)["stop"].values()), tokens[: tokens.index(stop) + 1])

    def test_blocks_that_are_not_there_are_not_reserved_and_released_ones_are_free(self) -> None:
        here = self.served(0)
        here.add("one", next(models.prompts(seed=1)), greedy())
        here.run(3)
        request = carried.manifest(self.cores[0])[0]
        before = free_blocks(self.cores[1])
        reserved = carried.reserve(self.cores[1], request)
        self.assertEqual(free_blocks(self.cores[1]), before - len(request.blocks))
        carried.release(self.cores[1], reserved)
        self.assertEqual(free_blocks(self.cores[1]), before)
        pool = self.cores[1].scheduler.kv_cache_manager.block_pool
        held = pool.get_new_blocks(before)
        self.assertIsNone(carried.reserve(self.cores[1], request))
        pool.free_blocks(held)
        self.assertEqual(free_blocks(self.cores[1]), before)
        here.run()

    def test_a_manifest_of_another_version_is_refused(self) -> None:
        wire = carried.encode([])
        self.assertEqual(carried.decode(wire), [])
        with self.assertRaisesRegex(ValueError, "version 3"):
            carried.decode(wire.replace(b"\xa7version\x02", b"\xa7version\x03"))
        with self.assertRaisesRegex(ValueError, "no manifest"):
            carried.decode(b"\xc1")

    def settle(self) -> None:
        """A step without requests makes the runner forget those that left."""
        for core in self.cores:
            scheduled = engine.schedule(core)
            engine.update(core, scheduled, engine.compute(core, scheduled))
            self.assertEqual(engine.runner_of(core).requests, {})


class Breaks(Case):
    def test_a_step_that_broke_at_any_exchange_is_computed_again(self) -> None:
        common = next(p for p in models.prompts(seed=6) if len(p) == 64)  # two blocks, which later requests find in the prefix cache
        alike = islice(self.oracle.decided((common + [i] for i in range(99)), TOKENS), 4)
        prompts = self.prompts("b", 6, seed=5) | {f"alike{i}": prompt for i, prompt in enumerate(alike)}
        over = 0
        for at in range(3):
            with self.subTest(layer=at):
                served = self.served(0)
                self.cores[0].scheduler.reset_prefix_cache()
                todo = dict(prompts)
                for step in range(60):
                    for name in list(todo)[: 2 if step % 2 else 3]:
                        served.add(name, todo.pop(name), greedy())
                    self.fragile.left = at if step % 3 == 0 else None  # breaks; whole steps in between
                    over += len(served.step())
                self.fragile.left = None
                served.run()
                self.same_as_oracle(served.tokens, prompts)
        self.assertGreater(over, 0, "no request had hit a block of its own step: the test does not reach that rule")

    def test_a_seeded_request_samples_as_if_nothing_had_broken(self) -> None:
        prompt = next(models.prompts(seed=8))
        got = []
        for breaks in (False, True):
            served = self.served(0)
            served.add(f"seeded{breaks}", prompt, SamplingParams(temperature=1, seed=3, max_tokens=20, ignore_eos=True))
            for step in range(80):
                self.fragile.left = 1 if breaks and step % 2 else None
                served.step()
            self.fragile.left = None
            got.append(served.tokens[f"seeded{breaks}"])
        self.assertEqual(got[0], got[1])
        self.assertEqual(len(got[0]), 20)


if __name__ == "__main__":
    unittest.main()
