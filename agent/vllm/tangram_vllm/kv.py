"""KV in the agent's memory: vLLM's blocks in its region, and the bytes of a head of a block."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import vllm.v1.worker.gpu_model_runner as runner
from tangram_client import KvElement, KvFormat
from vllm.model_executor.models.utils import extract_layer_index
from vllm.v1.engine.core import EngineCore

from .binding import bound

_ELEMENTS = {torch.float32: KvElement.F32, torch.float16: KvElement.F16, torch.bfloat16: KvElement.BF16}

_allocate = runner.allocate_kv_cache


def _in_agent_memory(kv_cache_config, device, layout, kernel_block_sizes=None):  # type: ignore[no-untyped-def]
    """vLLM's views, each over the agent's region instead of vLLM's buffer, whose pages were never touched."""
    views = _allocate(kv_cache_config, device, layout, kernel_block_sizes)
    return {name: relocated(view, bound().kv) for name, view in views.items()}


def install() -> None:
    """From now on vLLM's model runners have their KV in the bound region. Idempotent."""
    runner.allocate_kv_cache = _in_agent_memory


def relocated(view: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """The same view of other memory (uint8). ValueError: it does not fit."""
    if view.untyped_storage().nbytes() > memory.nbytes:
        raise ValueError(f"vLLM wants {view.untyped_storage().nbytes()} bytes of KV, the agent's region has {memory.nbytes}")
    whole = memory[: memory.nbytes // view.element_size() * view.element_size()].view(view.dtype)
    return whole.as_strided(view.shape, view.stride(), whole.storage_offset() + view.storage_offset())


def caches_of(core: EngineCore) -> dict[str, torch.Tensor]:
    """The KV of each layer by name: [blocks, heads, tokens, K and V]."""
    layers = core.vllm_config.compilation_config.static_forward_context
    return {name: layer.kv_cache for name, layer in layers.items() if isinstance(getattr(layer, "kv_cache", None), torch.Tensor)}


def format_of(caches: dict[str, torch.Tensor]) -> KvFormat:
    """The format of vLLM's KV in the bound region. `caches` by name of layer: [blocks, heads, tokens, K and V] each.

    K and V of a token are in the order of vLLM's kernels, so whole pages move: a page is a head of a block of a layer.
    ValueError: layers differ, or no format describes them (other attention than over all tokens).
    """
    views = [caches[name] for name in sorted(caches, key=extract_layer_index)]
    first, base = views[0], bound().kv.data_ptr()
    size, (blocks, heads, tokens, width) = first.element_size(), first.shape
    if first.dtype not in _ELEMENTS:
        raise ValueError(f"KV of {first.dtype} is not carried: {', '.join(str(d) for d in _ELEMENTS)} are")
    if any(v.shape != first.shape or v.stride() != first.stride() or v.dtype != first.dtype for v in views):
        raise ValueError("layers keep KV in different ways: they are not carried")
    if first.stride(3) != 1 or first.stride(2) != width:
        raise ValueError(f"a head of a block is no page of its own: strides {first.stride()} of shape {tuple(first.shape)}")
    layer_stride = _even([v.data_ptr() for v in views])
    return KvFormat(
        blocks=blocks, block_tokens=tokens, element=_ELEMENTS[first.dtype], key_width=width // 2, value_width=width // 2, layers=len(views), heads=heads,
        offset=first.data_ptr() - base, layer_stride=layer_stride, block_stride=first.stride(0) * size, head_stride=first.stride(1) * size,
        whole_page_bytes=tokens * width * size,
    )


def page_offset(kv: KvFormat, layer: int, block: int, head: int) -> int:
    """The page's offset in the region, in bytes; its size is kv.whole_page_bytes. `layer` counts layers with KV."""
    return kv.offset + layer * kv.layer_stride + block * kv.block_stride + head * kv.head_stride


def _even(addresses: Sequence[int]) -> int:
    """The distance between the addresses."""
    steps = {b - a for a, b in zip(addresses, addresses[1:], strict=False)}
    if len(steps) > 1 or min(steps, default=0) < 0:
        raise ValueError("layers of KV do not lie at equal distances")
    return steps.pop() if steps else 0
