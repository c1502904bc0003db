"""Dense weights in the agent's memory: parameters become views of its read-only mapping, without packed copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch.nn import functional
from vllm.config import ModelConfig, VllmConfig
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

from .binding import bound
from .families import Family
from .ops import Operator

PARTS = "tangram_parts"  # of a fused module: its weights and biases
# Modules whose output is that of several modules of the checkpoint, concatenated.
FUSED: Mapping[str, tuple[str, ...]] = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}

Part = tuple[torch.Tensor, torch.Tensor | None]
# Up to this many rows our operator is faster: it reads each weight once. torch's linear, made for many rows, is bound
# by memory.
MOST_ROWS = 64


class TangramLoader(BaseModelLoader):
    """The loader for load_format "tangram"."""

    def download_model(self, model_config: ModelConfig) -> None:
        pass

    def load_weights(self, model: torch.nn.Module, model_config: ModelConfig) -> None:
        attach(model, bound().dense, bound().family)

    def load_model(self, vllm_config: VllmConfig, model_config: ModelConfig, prefix: str = "") -> torch.nn.Module:
        model = super().load_model(vllm_config, model_config, prefix)
        operator = Operator(torch.get_num_threads())
        for module in model.modules():  # now, because vLLM chooses `cpu_linear` after it has loaded
            if isinstance(module, (LinearBase, VocabParallelEmbedding)):
                module.cpu_linear = _linear(operator, getattr(module, PARTS, None))
        return model


def attach(model: torch.nn.Module, dense: Mapping[str, torch.Tensor], family: Family) -> None:
    """Makes every parameter of a model a view of `dense`. ValueError names a missing one, or one of another shape or
    type."""
    modules = dict(model.named_modules())
    fused = set()
    for name, module in modules.items():
        if isinstance(module, LinearBase):
            module._cpu_skip_gemm_dispatch = True  # no packed copy
        if isinstance(module, VocabParallelEmbedding):
            module.quant_method.process_weights_after_loading = lambda layer: None  # vLLM has no such switch here
        prefix, _, last = name.rpartition(".")
        if last in FUSED:
            parts = [_part(f"{prefix}.{part}", module, dense, family) for part in FUSED[last]]
            setattr(module, PARTS, parts)
            fused.add(name)
    for name, parameter in model.named_parameters():
        owner = name.rpartition(".")[0]
        if owner in fused:
            parameter.data = torch.empty(0, dtype=parameter.dtype)
            continue
        tensor = _tensor(family.hub_name(name), parameter.dtype, dense)
        # vLLM pads a vocabulary; the padding is never used.
        rows = len(tensor) if isinstance(modules[owner], VocabParallelEmbedding) else len(parameter)
        if len(tensor) > len(parameter) or tensor.shape != (rows, *parameter.shape[1:]):
            raise ValueError(f"{name}: the model wants shape {tuple(parameter.shape)}, the checkpoint has {tuple(tensor.shape)}")
        parameter.data = tensor


def attached(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter that the model computes with, the parts of fused modules separately: for tests of addresses."""
    for name, parameter in model.named_parameters():
        if parameter.numel():
            yield name, parameter.data
    for name, module in model.named_modules():
        for i, part in enumerate(getattr(module, PARTS, ())):
            for tensor in part:
                if tensor is not None:
                    yield f"{name}[{i}]", tensor


def _part(name: str, module: torch.nn.Module, dense: Mapping[str, torch.Tensor], family: Family) -> Part:
    weight = _tensor(family.hub_name(f"{name}.weight"), module.weight.dtype, dense)
    if weight.shape[1] != module.input_size:
        raise ValueError(f"{name}.weight: the model wants {module.input_size} inputs, the checkpoint has shape {tuple(weight.shape)}")
    bias = None if module.bias is None else _tensor(family.hub_name(f"{name}.bias"), module.bias.dtype, dense)
    return weight, bias


def _tensor(name: str, dtype: torch.dtype, dense: Mapping[str, torch.Tensor]) -> torch.Tensor:
    if name not in dense:
        raise ValueError(f"the checkpoint has no tensor {name}: is its family's table right?")
    if dense[name].dtype != dtype:
        raise ValueError(f"{name}: the engine's dtype is {dtype}, the checkpoint's {dense[name].dtype}; weights are not converted, as they are not copied")
    return dense[name]


def _linear(operator: Operator, parts: Sequence[Part] | None) -> Callable[..., torch.Tensor]:
    """The linear of a layer's own weight and bias, or of concatenated parts."""
    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        mine = parts or [(weight, bias)]
        if x.numel() <= MOST_ROWS * x.shape[-1]:
            return operator.linear(x, mine)
        results = [functional.linear(x, w, b) for w, b in mine]
        return torch.cat(results, -1) if len(results) > 1 else results[0]

    return linear
