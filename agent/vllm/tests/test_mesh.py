"""The pieces of a layer in the exchange's tables."""

import unittest
from types import SimpleNamespace

import numpy as np
import torch
from tangram_vllm.mesh import _PIECES, MeshExchange
from tangram_vllm.ops import GRANULE_MAJOR, Operator

GRANULES, ROWS, HIDDEN = (2, 1), 16, 128  # of two pieces


class MeshTest(unittest.TestCase):
    def test_pieces_are_computed_where_they_lie_or_from_copies_of_this_layout(self) -> None:
        sizes = [granules * 3 * ROWS * HIDDEN for granules in GRANULES]
        pieces = [torch.full((size,), value, dtype=torch.float32) for size, value in zip(sizes, (1.0, 2.0), strict=True)]
        told = np.zeros(2, _PIECES)
        told["address"], told["replica"], told["granules"] = [p.data_ptr() for p in pieces], [0, 1], GRANULES
        model = SimpleNamespace(hidden=HIDDEN, granule_rows=ROWS, slab_format=GRANULE_MAJOR)
        kit = SimpleNamespace(client=SimpleNamespace(model=model), pieces=lambda layer: told.tobytes())
        maps = SimpleNamespace(layers=[SimpleNamespace(layer=3, moe_ordinal=0), SimpleNamespace(layer=4, moe_ordinal=None)])
        shared, private = (MeshExchange(kit, Operator(), torch.float32, private=p) for p in (False, True))
        for exchange in (shared, private):
            exchange.enter(maps)
        self.assertEqual(list(shared._table(3).pieces["gate"]), [p.data_ptr() for p in pieces])
        self.assertEqual(list(private._copies), [3])
        for copy, piece in zip(private._copies[3], pieces, strict=True):
            self.assertEqual(copy.view(torch.float32).tolist(), piece.tolist())
        self.assertEqual(list(private._table(3).pieces["gate"]), [c.data_ptr() for c in private._copies[3]])
        pieces[0][:] = 5  # the next layout has other bytes there
        private.enter(maps)
        self.assertEqual(private._copies[3][0].view(torch.float32).tolist(), pieces[0].tolist())
        private.leave()
        self.assertFalse(private._copies)


if __name__ == "__main__":
    unittest.main()
