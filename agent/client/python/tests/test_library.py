"""The library through ctypes, without an agent: structs, errors, the KV plan."""

import array
import ctypes
import dataclasses
import doctest
import sys
import unittest

import numpy
import tangram_client as tg
from tangram_client import _abi, kv_format
from tangram_client.maps import maps_of, model_of


class Structs(unittest.TestCase):
    def test_sizes_are_those_of_the_header(self):
        # agent/client/abi_test.c has the same numbers.
        sizes = {
            _abi.Error: 512, _abi.Options: 80, _abi.Model: 192, _abi.Section: 16, _abi.Maps: 128, _abi.Event: 64, _abi.EngineStats: 48,
            _abi.Vote: 16, _abi.KvManifest: 144, _abi.KvPlanned: 144, _abi.KvFormat: 96,
            _abi.KvPageCopy: 28, _abi.KvByteMoves: 40,
        }
        self.assertEqual({s: ctypes.sizeof(s) for s in sizes}, sizes)

    def test_versions_are_the_same(self):
        self.assertEqual(tg.library_version(), tg.__version__)


class Maps(unittest.TestCase):
    """Structs as the library makes them, with gaps for members of later versions."""

    def maps(self, layers: int, experts: int, shards: int) -> tuple[_abi.Maps, list[object]]:
        class WideExpert(ctypes.Structure):
            _fields_ = [("known", _abi.Expert), ("later", ctypes.c_uint64)]

        class WidePiece(ctypes.Structure):
            _fields_ = [("known", _abi.Piece), ("later", ctypes.c_uint64)]

        maps, keep = _abi.sized(_abi.Maps), []
        maps.layer_size, maps.group_size = ctypes.sizeof(_abi.LayerMap), ctypes.sizeof(_abi.AttentionGroup)
        maps.expert_size, maps.piece_size = ctypes.sizeof(WideExpert), ctypes.sizeof(WidePiece)
        table = (_abi.LayerMap * layers)()
        for number, layer in enumerate(table):
            counts = [1 + (number + e) % 2 for e in range(experts)]  # replicas
            pieces, wide = (WidePiece * (sum(counts) * shards))(), (WideExpert * experts)()
            at = 0
            for e, replicas in enumerate(counts):
                wide[e].known = _abi.Expert(replicas, shards, ctypes.addressof(pieces) + at * ctypes.sizeof(WidePiece))
                for i in range(replicas * shards):
                    pieces[at].known = _abi.Piece(i, number, e, 4096 * (at + 1) if i == 0 else None)
                    at += 1
            layer.layer, layer.moe_ordinal, layer.experts = number, number, ctypes.addressof(wide)
            keep += [pieces, wide]
        maps.layers = ctypes.addressof(table)
        return maps, [*keep, table]

    def test_experts_are_those_of_the_library_and_outlive_it(self):
        maps, keep = self.maps(3, 5, 2)
        layers = maps_of(maps, 5, 3).layers
        for kept in keep:
            ctypes.memset(ctypes.addressof(kept), 0xFF, ctypes.sizeof(kept))
        for number, layer in enumerate(layers):
            at = 0
            self.assertEqual(len(layer.experts), 5)
            for e, expert in enumerate(layer.experts):
                replicas = 1 + (number + e) % 2
                want = [(i, number, e, 4096 * (at + i + 1) if i == 0 else 0) for i in range(replicas * 2)]
                at += replicas * 2
                self.assertEqual([tuple(p) for a in expert.alternatives for p in a], want)
                self.assertEqual([len(a) for a in expert.alternatives], [2] * replicas)
        experts = layers[0].experts
        self.assertEqual(experts[-1], experts[4])
        self.assertEqual(experts[1:3], (experts[1], experts[2]))
        self.assertEqual(tuple(experts), experts)
        self.assertRaises(IndexError, lambda: experts[5])

    def test_sections_are_those_that_the_library_knows(self):
        class WideSection(ctypes.Structure):
            _fields_ = [("known", _abi.Section), ("later", ctypes.c_uint64)]

        table = (WideSection * 2)(WideSection(_abi.Section(1, 48), 7), WideSection(_abi.Section(16, 3), 7))
        raw = _abi.sized(_abi.Model)
        raw.slab_format, raw.sections, raw.section_count, raw.section_size = 2, ctypes.addressof(table), 2, ctypes.sizeof(WideSection)
        self.assertEqual(model_of(raw).sections, ((1, 48), (16, 3)))
        self.assertEqual(model_of(raw).slab_format, tg.SlabFormat.ROW_MAJOR)
        raw.struct_size = _abi.Model.sections.offset  # of a library without this member
        self.assertEqual(model_of(raw).sections, ())

    def test_a_layer_without_experts(self):
        maps, _keep = self.maps(1, 0, 1)
        self.assertEqual(list(maps_of(maps, 0, 1).layers[0].experts), [])

    def test_a_flip_does_not_make_every_expert(self):
        """58 x 256 experts in 8 pieces each or twice that: reading maps calls functions per layer, not per expert."""
        maps, _keep = self.maps(58, 256, 8)
        calls = 0

        def count(_frame, event, _function):
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(count)
        taken = maps_of(maps, 256, 58)
        sys.setprofile(None)
        self.assertLess(calls, 58 * 256 / 4)
        self.assertEqual(sum(len(e.alternatives) for layer in taken.layers for e in layer.experts), 58 * 256 * 3 // 2)


class Errors(unittest.TestCase):
    def test_an_agent_that_is_not_there(self):
        with self.assertRaisesRegex(tg.DisconnectedError, "/nowhere/agent.sock"):
            tg.Client.attach("/nowhere/agent.sock", "t")
        with self.assertRaisesRegex(tg.InvalidError, "must have 1 to"):
            tg.Client.attach("/x" * 100, "t")

    def test_unknown_slab_formats(self):
        with self.assertRaisesRegex(tg.InvalidError, "slab_formats is 64"):
            tg.Client.attach("/nowhere/agent.sock", "t", slab_formats=tg.SlabFormat(64))


class Format(unittest.TestCase):
    def setUp(self) -> None:
        # [layer][K, V][block][position][head][width], as numpy has it.
        self.here = numpy.arange(2 * 2 * 3 * 4 * 2 * 8, dtype=numpy.float16).reshape(2, 2, 3, 4, 2, 8)
        self.there = numpy.zeros((2, 2, 5, 4, 2, 8), dtype=numpy.float16)

    def of(self, region: numpy.ndarray) -> tg.KvFormat:
        layer, value, block, token, head, _ = region.strides
        layers, _, blocks, tokens, heads, width = region.shape
        return tg.KvFormat(
            layers=layers, blocks=blocks, heads=heads, block_tokens=tokens, element=tg.KvElement.F16, key_width=width, value_width=width,
            layer_stride=layer, value_offset=value, block_stride=block, token_stride=token, head_stride=head,
        )

    def copies(self, source: int, target: int, tokens: int) -> list[tg.PageCopy]:
        a, b = self.of(self.here), self.of(self.there)
        return [tg.PageCopy(0, a.page(0, source, head), a.layer_pages, b.page(0, target, head), b.layer_pages, 2, tokens) for head in range(2)]

    def test_blocks_of_a_strided_tensor_move(self):
        self.of(self.here).check(self.here.nbytes)
        moves = tg.kv_moves([self.of(self.here)], self.of(self.there), [*self.copies(0, 2, 4), *self.copies(1, 3, 4), *self.copies(2, 0, 3)])
        source, target = self.here.tobytes(), bytearray(self.there.tobytes())
        for move in moves:
            target[move.target_offset : move.target_offset + move.length] = source[move.source_offset : move.source_offset + move.length]
        want = self.there.copy()
        want[:, :, 2:4], want[:, :, 0, :3] = self.here[:, :, 0:2], self.here[:, :, 2, :3]
        self.assertEqual(bytes(target), want.tobytes())
        self.assertEqual((len(moves), moves.bytes), (8, 2 * 2 * 11 * 2 * 8 * 2), "a run for each layer, K and V, of what lies side by side")
        self.assertEqual(moves[-1], moves[len(moves) - 1 :][0])

    def test_what_is_wrong_is_named(self):
        one = self.of(self.here)
        with self.assertRaisesRegex(tg.InvalidError, "region of 100 bytes"):
            one.check(100)
        with self.assertRaisesRegex(tg.InvalidError, "token_stride is 2"):
            dataclasses.replace(one, token_stride=2).check(self.here.nbytes)
        with self.assertRaisesRegex(tg.InvalidError, "rank 0 has none"):
            tg.kv_moves([None], one, self.copies(0, 0, 4))
        with self.assertRaisesRegex(tg.InvalidError, "element 3"):
            tg.kv_moves([dataclasses.replace(one, element=tg.KvElement.BF16)], one, self.copies(0, 0, 4))
        self.assertEqual(len(tg.kv_moves([], one, [])), 0)


class Plan(unittest.TestCase):
    def manifest(self, rank: int | None = 0, free: int = 6, **changes: object) -> tg.Manifest:
        """Two ranks with a request each, of one layer; they come to share all heads, or stay, as given."""
        alone = [tg.Group((r,), (0, 4)) for r in range(2)]
        together = [tg.Group((0, 1), (0, 2, 4))]
        fields = dict(
            query_heads=4, kv_heads=2, block_tokens=16, head_token_bytes=64, old_groups=[alone], new_groups=[together],
            new_of_old=[0, 1], new_ranks=2,
            requests=[tg.Request("a", 0, 20, 32, [5, 6]), tg.Request("b", 1, 16, 16, [1])],
            ranks=[tg.RankState(10, free, [tg.Strip(0, block, head, 0, 1, page, 1) for block, head, page in [(5, 0, 0), (5, 1, 1), (6, 0, 2), (6, 1, 3)]]),
                   tg.RankState(8, free, [tg.Strip(1, 1, 0, 0, 1, 7, 1), tg.Strip(1, 1, 1, 0, 1, 6, 1)])],
            rank=rank,
        )
        return tg.Manifest(**{**fields, **changes})

    def test_heads_go_to_the_ranks_that_will_have_them(self):
        plans = [tg.kv_plan(self.manifest(rank)) for rank in range(2)]
        for plan in plans:
            self.assertEqual([(p.id, p.home, len(p.blocks)) for p in plan.requests], [("a", 0, 2), ("b", 1, 1)])
            self.assertEqual((plan.requests_moved, len(plan.next_block)), (0, 2))
        here, there = plans[0].part, plans[1].part
        self.assertEqual([(m.source_rank, m.source_page, m.kv_head, m.tokens) for m in here.moves], [(1, 7, 0, 16)])
        self.assertEqual([(m.source_rank, m.source_page, m.kv_head, m.tokens) for m in there.moves], [(0, 1, 1, 16), (0, 3, 1, 4)])
        self.assertEqual([k.page for k in here.kept], [0, 2])
        self.assertEqual(([s.page for s in here.freed], [s.page for s in there.freed]), ([1, 3], [7]))
        self.assertEqual([(p.moved_bytes, p.local_bytes) for p in (here, there)], [(16 * 64, 0), (20 * 64, 0)])

    def test_nothing_moves_where_nothing_changes(self):
        part = tg.kv_plan(self.manifest(new_groups=self.manifest().old_groups)).part
        self.assertEqual((len(part.moves), len(part.freed), len(part.kept)), (0, 0, 4))

    def test_joiners_tell_their_pages(self):
        three = [tg.Group((r,), (0, 4)) for r in range(3)]
        plan = tg.kv_plan(self.manifest(2, new_groups=[three], new_ranks=3, joined_pages=[0, 0, 10]))
        self.assertEqual((len(plan.next_block), len(plan.part.kept)), (3, 0))
        with self.assertRaisesRegex(ValueError, "joined_pages"):
            tg.kv_plan(self.manifest(joined_pages=[1]))

    def test_who_leaves_has_no_part(self):
        plan = tg.kv_plan(self.manifest(None, new_groups=[[tg.Group((0,), (0, 4))]], new_of_old=[0, -1], new_ranks=1))
        self.assertEqual([p.home for p in plan.requests], [0, 0])
        self.assertEqual((len(plan.part.moves), len(plan.part.kept), len(plan.part.freed)), (0, 0, 0))
        with self.assertRaisesRegex(tg.InvalidError, "rank is 2"):
            tg.kv_plan(self.manifest(2))

    def test_strips_and_parts_are_tables_too(self):
        wanted, manifest = tg.kv_plan(self.manifest()), self.manifest()
        tables = [array.array("I", [n for strip in r.strips for n in strip]) for r in manifest.ranks]
        for as_bytes in (bytes, memoryview):
            ranks = [tg.RankState(r.total_pages, r.free_pages, as_bytes(t)) for r, t in zip(manifest.ranks, tables, strict=True)]
            self.assertEqual(list(tg.kv_plan(self.manifest(ranks=ranks)).part.kept), list(wanted.part.kept))
        self.assertEqual(wanted.part.kept.table.tolist(), [list(k) for k in wanted.part.kept])
        self.assertEqual((wanted.part.kept[-1], wanted.part.kept[:1]), (wanted.part.kept[1], [wanted.part.kept[0]]))
        with self.assertRaises(IndexError):
            _ = wanted.part.kept[2]
        with self.assertRaisesRegex(ValueError, "29 bytes"):
            tg.kv_plan(self.manifest(ranks=[tg.RankState(10, 6, bytes(29)), manifest.ranks[1]]))

    def test_no_room(self):
        with self.assertRaises(tg.NoRoomError):
            tg.kv_plan(self.manifest(free=0))

    def test_a_contradiction(self):
        with self.assertRaises(tg.InvalidError):
            tg.kv_plan(self.manifest(kv_heads=3))


def load_tests(loader: unittest.TestLoader, tests: unittest.TestSuite, pattern: object) -> unittest.TestSuite:
    tests.addTests(doctest.DocTestSuite(kv_format))
    return tests


if __name__ == "__main__":
    unittest.main()
