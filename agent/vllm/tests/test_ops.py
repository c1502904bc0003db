"""The operator compared with transformers' own block of experts, over pieces cut at random."""

import random
import unittest

import models
import torch
from tangram_vllm.ops import GRANULE_MAJOR, ROW_MAJOR, Operator, Placed, Table
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

R = models.GRANULE_ROWS
BLOCKS = {"qwen3_moe": Qwen3MoeSparseMoeBlock, "mixtral": MixtralSparseMoeBlock}


def piece(gate_up: torch.Tensor, down: torch.Tensor, begin: int, end: int, slab_format: int) -> torch.Tensor:
    """Granules [begin, end) of an expert in the agent's format. gate_up: [2 * inner, hidden], gate first; down:
    [hidden, inner]."""
    gate, up = gate_up.chunk(2)
    rows = slice(begin * R, end * R)
    if slab_format == ROW_MAJOR:
        return torch.cat([gate[rows].flatten(), up[rows].flatten(), down[:, rows].flatten()])
    hidden = gate.shape[1]
    return torch.stack([part[rows].reshape(end - begin, R, hidden) for part in (gate, up, down.t())], 1).contiguous()


class OpsTest(unittest.TestCase):
    def test_pieces_add_up_to_the_block_of_transformers(self) -> None:
        rng = random.Random(1)
        for model_type, block_class in BLOCKS.items():
            for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 3e-2)):
                for slab_format in (GRANULE_MAJOR, ROW_MAJOR):
                    with self.subTest(model_type, dtype=dtype, slab_format=slab_format):
                        torch.manual_seed(rng.randrange(1000))
                        config = models.CONFIGS[model_type]()
                        config._experts_implementation = "eager"
                        block = block_class(config).eval()
                        for parameter in block.parameters():
                            torch.nn.init.normal_(parameter, std=0.2)
                        block = block.to(dtype)
                        memory, pieces = [], []
                        for e in range(8):
                            cuts = sorted({0, 96 // R, rng.randrange(96 // R)})
                            for begin, end in zip(cuts, cuts[1:], strict=False):
                                memory.append(piece(block.experts.gate_up_proj[e].data, block.experts.down_proj[e].data, begin, end, slab_format))
                                pieces.append(Placed(e, end - begin, memory[-1].data_ptr()))
                        table = Table(128, R, dtype, slab_format, rng.sample(pieces, len(pieces)))
                        x = torch.randn(19, 128, dtype=dtype)
                        with torch.no_grad():
                            want = block(x[None])
                            want = (want[0] if isinstance(want, tuple) else want).view(19, 128).float()
                            routed = block.gate(x)
                        weights, ids = routed[-2].float(), routed[-1]
                        y = torch.zeros(19, 128)
                        operator = Operator(2)
                        operator.add(table, x.float(), ids.to(torch.int32), weights, y)
                        operator.close()
                        self.assertLess(float((y - want).abs().max()), tolerance * float(want.abs().max()))

    def test_a_linear_is_that_of_torch_side_by_side(self) -> None:
        operator = Operator(2)
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
            torch.manual_seed(1)
            parts = [(torch.randn(n, 96).to(dtype), bias) for n, bias in ((64, None), (33, torch.randn(33).to(dtype)))]
            for shape in ((1, 96), (7, 96), (2, 3, 96)):
                x = torch.randn(shape).to(dtype)
                want = torch.cat([torch.nn.functional.linear(x, w, b) for w, b in parts], -1)
                got = operator.linear(x, parts)
                self.assertEqual((got.shape, got.dtype), (want.shape, dtype))
                self.assertLess(float((got - want).float().abs().max()), tolerance * float(want.float().abs().max()))
        with self.assertRaisesRegex(ValueError, r"contiguous torch.float32 \[n, 96\]"):
            operator.linear(torch.zeros(1, 96), [(torch.zeros(4, 95), None)])
        with self.assertRaisesRegex(ValueError, "float16"):
            operator.linear(torch.zeros(1, 96, dtype=torch.float16), parts)
        operator.close()

    def test_what_is_no_input_is_refused_by_name(self) -> None:
        with self.assertRaisesRegex(ValueError, "float16 are not computed"):
            Table(8, 4, torch.float16, GRANULE_MAJOR, [])
        with self.assertRaisesRegex(ValueError, "300 threads"):
            Operator(300)
        table, operator = Table(8, 4, torch.float32, GRANULE_MAJOR, [Placed(1, 1, 0)]), Operator()
        x, ids, weights = torch.zeros(2, 8), torch.zeros(2, 1, dtype=torch.int32), torch.zeros(2, 1)
        with self.assertRaisesRegex(ValueError, "ids must be contiguous torch.int32"):
            operator.add(table, x, ids.long(), weights, x.clone())
        with self.assertRaisesRegex(RuntimeError, "expert 1.*no address"):
            operator.add(table, x, ids, weights, x.clone())
        operator.close()


if __name__ == "__main__":
    unittest.main()
