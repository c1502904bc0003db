"""Buffers of two ranks in threads (the library releases the interpreter lock), compared with sums by numpy."""

import ctypes
import doctest
import tempfile
import threading
import unittest

import numpy
import tangram_dispatch as td
from tangram_dispatch import _abi, _tensors

HIDDEN, TOP_K, EXPERTS = 24, 2, 5


class Tensor:
    """The used interface of a torch tensor, on a numpy array."""

    class Device:
        type = "cpu"

    device = Device()

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, f"torch.{array.dtype}"

    def data_ptr(self):
        return self.array.ctypes.data

    def is_contiguous(self):
        return self.array.flags.c_contiguous


class Structs(unittest.TestCase):
    def test_sizes_are_those_of_the_header(self):
        # agent/dispatch/abi_test.c has the same numbers.
        sizes = {_abi.Options: 96, _abi.Member: 56, _abi.Piece: 24, _abi.Handle: 16, _abi.Packed: 64, _abi.Contribution: 12}
        self.assertEqual({s: ctypes.sizeof(s) for s in sizes}, sizes)

    def test_documentation(self):
        self.assertEqual(doctest.testmod(td).failed, 0)


class Buffers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def world(self, ranks=2, **options):
        settings = {"hidden": HIDDEN, "top_k": TOP_K, "experts": EXPERTS, "most_tokens": 16, "x": "f32", "sums": "f32", **options}
        buffers = [td.Buffer(td.Member(f"r{r}", node="n", local=f"unix:{self.folder}/r{r}"), **settings) for r in range(ranks)]
        for buffer in buffers:
            self.addCleanup(buffer.close)
        members = [buffer.member for buffer in buffers]
        self.on_each(ranks, lambda r: buffers[r].prepare(members))
        for buffer in buffers:
            buffer.update_ep_member(1, members, td.even_placement(EXPERTS, ranks))
        return buffers

    def on_each(self, ranks, run):
        failures = []

        def guarded(r):
            try:
                run(r)
            except BaseException as e:
                failures.append(e)

        threads = [threading.Thread(target=guarded, args=(r,)) for r in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def rows(self, seed, tokens):
        draw = numpy.random.default_rng(seed)
        return (draw.integers(-7, 8, (tokens, HIDDEN)).astype(numpy.float32), draw.integers(0, EXPERTS, (tokens, TOP_K)).astype(numpy.int32),
                draw.integers(1, 4, (tokens, TOP_K)).astype(numpy.float32))

    @staticmethod
    def compute(sent):
        x, _, experts, counts = sent.packed()
        return x * numpy.repeat(experts + 1, counts)[:, None].astype(numpy.float32)

    @staticmethod
    def serial(x, experts, weights):
        return x * ((experts + 1) * weights).sum(axis=1)[:, None]

    def test_every_way_gives_what_a_serial_sum_gives(self):
        for wrap in (lambda array: array, Tensor):
            buffers = self.world()

            def run(r):
                for tokens, how in ((7, "wait"), (0, "hook"), (16, "hook"), (5, "event")):
                    x, experts, weights = self.rows(10 * r + tokens, tokens)
                    sent = buffers[r].dispatch(0, wrap(x), wrap(experts), wrap(weights), return_recv_hook=how == "hook", async_finish=how == "event")
                    if how == "hook":
                        sent.hook()
                    while how == "event" and not sent.event.query():
                        pass
                    sent.handle.like = x  # numpy results
                    outputs = self.compute(sent)
                    zero_copy = how == "hook"
                    if zero_copy:
                        buffers[r].get_next_combine_buffer(sent.handle)[:] = outputs
                    y, event, _ = buffers[r].combine(sent.handle, None if zero_copy else outputs, zero_copy=zero_copy, async_finish=True)
                    event.wait()
                    numpy.testing.assert_array_equal(y, self.serial(x, experts, weights))
                    self.assertEqual(buffers[r].missing(), [])

            self.on_each(2, run)
            self.assertEqual([buffers[0].path(r) for r in range(2)], ["here", "shared memory"])
            for buffer in buffers:
                buffer.close()

    def test_of_a_rank_that_is_gone_what_is_missing_is_told(self):
        buffers = self.world()
        buffers[1].close()
        x, experts, weights = self.rows(1, 8)
        sent = buffers[0].dispatch(0, x, experts, weights)
        y, _, _ = buffers[0].combine(sent.handle, self.compute(sent))
        lost = experts >= 3
        self.assertEqual(buffers[0].missing(), [(t, k, int(experts[t, k])) for t in range(8) for k in range(TOP_K) if lost[t, k]])
        numpy.testing.assert_array_equal(y, self.serial(x, experts, numpy.where(lost, 0, weights)))
        self.assertEqual(buffers[0].active_ranks, [True, False])
        self.assertIn("it ended, or disconnected", buffers[0].cause(1))
        self.assertEqual(buffers[0].found(1), td.Found("gone", "dispatch", 0))
        self.assertIsNone(buffers[0].found(0))

    def test_whom_somebody_else_knows_to_be_gone_nobody_waits_for(self):
        buffers = self.world()
        buffers[0].mask(1, "its agent said so")
        self.assertEqual(buffers[0].found(1), td.Found("told", None, 0))
        self.assertEqual(buffers[0].cause(1), "its agent said so")

    def test_fp8_and_fixed_point(self):
        (buffer,) = self.world(1, wire="fp8", sums="fixed", packed_capacity=20)
        x, experts, weights = self.rows(3, 9)
        sent = buffer.dispatch(0, x, experts, weights)
        packed, scales, _, counts = sent.packed()
        self.assertEqual((packed.dtype, packed.shape, scales.shape), (numpy.uint8, (18, HIDDEN), (18, 1)))
        self.assertIsNone(buffer.overflow(sent.handle))
        outputs = buffer.get_next_combine_buffer(sent.handle)
        self.assertEqual(outputs.dtype, numpy.float32)
        outputs[:] = 1
        y, _, _ = buffer.combine(sent.handle, zero_copy=True)
        numpy.testing.assert_array_equal(y, numpy.broadcast_to((weights.sum(axis=1) * 2.0**40).astype(numpy.int64)[:, None], y.shape))
        more = self.rows(4, 11)
        sent = buffer.dispatch(0, *more)
        self.assertEqual(buffer.overflow(sent.handle), (22, 20))

    def test_what_cannot_be_meant_is_refused_by_name(self):
        (buffer,) = self.world(1)
        x, experts, weights = self.rows(1, 4)
        for arguments, message in (
            ((x.astype(numpy.float64), experts, weights), "x is of float64: want f32"),
            ((x[:, ::2], experts, weights), r"x is \(4, 12\): want \(4, 24\)"),
            ((numpy.asfortranarray(x), experts, weights), "x is not contiguous"),
            ((x, experts.astype(numpy.int64), weights), "topk_idx is of int64: want i32"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                buffer.dispatch(0, *arguments)
        with self.assertRaisesRegex(td.DispatchError, "row 0 is for expert 9 of 5"):
            buffer.dispatch(0, x, numpy.full_like(experts, 9), weights)
        with self.assertRaisesRegex(td.DispatchError, "no active layout has layer 3"):
            buffer.dispatch(3, x, experts, weights)
        with self.assertRaisesRegex(td.DispatchError, r"pieces\[0\] of layer 1 expert 0: layers come in order"):
            buffer.update_ep_member(2, [buffer.member], [td.Piece(1, 0, 0, 0)])
        with self.assertRaisesRegex(td.DispatchError, "expert 4: it is nowhere"):
            buffer.update_ep_member(2, [buffer.member], td.even_placement(EXPERTS, 1)[:-1])
        with self.assertRaisesRegex(td.DispatchError, "top_k is 33"):
            td.Buffer(td.Member("m"), hidden=1, top_k=33, experts=1, most_tokens=1)
        sent = buffer.dispatch(0, x, experts, weights)
        outputs = self.compute(sent)
        buffer.combine(sent.handle, outputs)
        with self.assertRaisesRegex(td.DispatchError, "a handle is for one dispatch and its combine"):
            buffer.combine(sent.handle, outputs)

    def test_the_hint_grows_with_what_it_is_for(self):
        hint = td.Buffer.get_buffer_size_hint
        self.assertGreater(hint(128, 7168, 8, 256, top_k=8), 128 * 7168 * 2 * 8 * 8)
        self.assertLess(hint(128, 7168, 8, 256, top_k=8, wire="fp8"), hint(128, 7168, 8, 256, top_k=8))
        self.assertEqual(_tensors.is_torch(Tensor(numpy.zeros(1))), True)


if __name__ == "__main__":
    unittest.main()
