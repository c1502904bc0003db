"""Requests with their blocks and the state of their sampling, from one EngineCore to another.

To its new scheduler, an arriving request looks like one that was preempted and resumes: prompt and output stay apart,
so that penalties, min_tokens and max_tokens count as before. Nothing is computed again. (A seeded request's random
numbers depend only on its seed and the position: engine.compute.) Between `reserve` and `admit` the caller copies
pages, and may still `release`. `Held` are blocks for a request that may arrive, of which only the name is known:
`reserve` uses them for its first blocks.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import torch
from vllm import SamplingParams
from vllm.v1.engine.core import EngineCore
from vllm.v1.request import Request, RequestStatus
from vllm.v1.worker.gpu_input_batch import CachedRequestState

from .engine import runner_of

VERSION = 2


class Carried(msgspec.Struct, frozen=True):
    """A request at the boundary of a step."""

    id: str
    prompt: list[int]
    output: list[int]
    computed: int  # tokens whose KV is in `blocks`
    left: int  # tokens that it may still produce
    blocks: list[int]  # on the source, in order of position
    sampling: bytes  # vLLM's SamplingParams, in the encoding that its own processes use
    arrival: float
    priority: int = 0
    salt: str | None = None  # of the prefix cache


class _Manifest(msgspec.Struct, frozen=True):
    version: int
    requests: list[Carried]


def manifest(core: EngineCore) -> list[Carried]:
    """All unfinished requests, including waiting ones."""
    scheduler = core.scheduler
    block_tokens = core.vllm_config.cache_config.block_size
    out = []
    for request in scheduler.requests.values():
        if request.is_finished():
            continue
        computed = request.num_computed_tokens
        blocks = scheduler.kv_cache_manager.get_block_ids(request.request_id)[0] if computed else []
        out.append(Carried(
            id=request.request_id, prompt=list(request.prompt_token_ids), output=list(request.output_token_ids), computed=computed,
            left=request.max_tokens - request.num_output_tokens, blocks=list(blocks[: -(-computed // block_tokens)]),
            sampling=msgspec.msgpack.encode(request.sampling_params), arrival=request.arrival_time, priority=request.priority,
            salt=request.cache_salt,
        ))
    return out


def encode(requests: list[Carried]) -> bytes:
    return msgspec.msgpack.encode(_Manifest(VERSION, requests))


def decode(wire: bytes) -> list[Carried]:
    """ValueError: the bytes are of another version, or no manifest."""
    try:
        got = msgspec.msgpack.decode(wire, type=_Manifest)
    except msgspec.DecodeError as error:
        raise ValueError(f"no manifest of requests: {error}") from None
    if got.version != VERSION:
        raise ValueError(f"a manifest of version {got.version}, this engine writes version {VERSION}: ranks of a world must have one version")
    return got.requests


class Running(msgspec.Struct, frozen=True):
    """The part of a request that others may copy while steps continue."""

    id: str
    computed: int
    most: int  # maximum number of positions
    blocks: list[int]
    generation: int  # of its KV: number of preemptions, each of which returned its blocks


def running(core: EngineCore) -> list[Running]:
    """Requests with KV. Their full blocks are not written again within a generation."""
    scheduler = core.scheduler
    return [
        Running(r.request_id, r.num_computed_tokens, r.num_prompt_tokens + r.max_tokens, scheduler.kv_cache_manager.get_block_ids(r.request_id)[0],
                r.num_preemptions)
        for r in scheduler.requests.values() if r.num_computed_tokens > 0 and not r.is_finished()
    ]


class Held:
    """Blocks for a request that may arrive: for vLLM's manager they belong to a request that no scheduler has."""

    def __init__(self, core: EngineCore, name: str) -> None:
        self._core, self._tokens = core, core.vllm_config.cache_config.block_size
        # A name that no request has: a request named `name` may be submitted here meanwhile.
        self._request = Request(f"tangram-ahead/{name}", [0], SamplingParams(max_tokens=1), None)
        self.blocks: list[int] = []

    def grow(self, count: int) -> list[int] | None:
        """Adds `count` blocks; None: too few are free."""
        manager, tokens = self._core.scheduler.kv_cache_manager, (len(self.blocks) + count) * self._tokens
        if manager.allocate_slots(self._request, 0, num_external_computed_tokens=tokens, delay_cache_blocks=True, has_scheduled_reqs=False,
                                  skip_zeroing_group_ids=(0,)) is None:
            return None
        more = list(manager.get_block_ids(self._request.request_id)[0])[len(self.blocks):]
        self.blocks += more
        return more

    def release(self) -> None:
        self._core.scheduler.kv_cache_manager.free(self._request)

    def give_to(self, request_id: str) -> None:
        """Gives them to the request; `allocate_slots` adds the rest."""
        for manager in self._core.scheduler.kv_cache_manager.coordinator.single_type_managers:
            manager.req_to_blocks[request_id] = manager.req_to_blocks.pop(self._request.request_id)
            manager.num_cached_block[request_id] = manager.num_cached_block.pop(self._request.request_id)


class Reserved(msgspec.Struct, frozen=True):
    """A request that has its blocks here and is not served yet."""

    carried: Carried
    request: Request
    blocks: list[int]  # on the target, one for each of carried.blocks


def reserve(core: EngineCore, carried: Carried, held: Held | None = None) -> Reserved | None:
    """Blocks for a request's KV, first those held for it; None: too few are free, and the held ones are freed too."""
    sampling = msgspec.msgpack.decode(carried.sampling, type=SamplingParams)
    request = Request(carried.id, list(carried.prompt), sampling, None, arrival_time=carried.arrival, priority=carried.priority, cache_salt=carried.salt,
                      block_hasher=core.request_block_hasher)
    if carried.output:
        request.append_output_token_ids(list(carried.output))
    if held is not None and carried.computed > 0:
        held.give_to(carried.id)
    elif held is not None:
        held.release()
    if carried.computed == 0:
        return Reserved(carried, request, [])
    # As blocks that another machine fills (disaggregated prefill): not in the prefix cache before they are filled.
    if core.scheduler.kv_cache_manager.allocate_slots(request, 0, num_external_computed_tokens=carried.computed, delay_cache_blocks=True,
                                                      has_scheduled_reqs=False, skip_zeroing_group_ids=(0,)) is None:
        core.scheduler.kv_cache_manager.free(request)
        return None
    return Reserved(carried, request, list(core.scheduler.kv_cache_manager.get_block_ids(carried.id)[0]))


def release(core: EngineCore, reserved: Reserved) -> None:
    """The request does not arrive: its blocks are free again."""
    if reserved.blocks:
        core.scheduler.kv_cache_manager.free(reserved.request)


def admit(core: EngineCore, reserved: Reserved) -> None:
    """Its KV is in its blocks: serves it from the next `schedule` on."""
    carried, request = reserved.carried, reserved.request
    if carried.computed:
        core.scheduler.kv_cache_manager.cache_blocks(request, carried.computed)
        request.num_computed_tokens = carried.computed
    if carried.computed or carried.output:
        _come_back(core, request, reserved.blocks)
    core.scheduler.add_request(request)


def begin(core: EngineCore, request: Request) -> None:
    """Serves a request without KV. A rank that is gone chose the beginning of its answer; its KV is computed again."""
    if request.num_output_tokens:
        _come_back(core, request, [])
    core.scheduler.add_request(request)


def _come_back(core: EngineCore, request: Request, blocks: list[int]) -> None:
    """To scheduler and runner it is a preempted request."""
    seeded = request.sampling_params.seed is not None
    # PREEMPTED, or its prefix found in the cache might not be longer than its prompt.
    request.status, request.num_preemptions = RequestStatus.PREEMPTED, 1
    runner_of(core).requests[request.request_id] = CachedRequestState(
        req_id=request.request_id, prompt_token_ids=list(request.prompt_token_ids), mm_features=[], sampling_params=request.sampling_params,
        generator=torch.Generator("cpu") if seeded else None, block_ids=(list(blocks),), num_computed_tokens=request.num_computed_tokens,
        output_token_ids=list(request.output_token_ids),
    )


def drop(core: EngineCore, request_ids: Iterable[str]) -> None:
    """They are served elsewhere from now on: frees their blocks, and sends no message to their clients."""
    core.scheduler.finish_requests(list(request_ids), RequestStatus.FINISHED_ABORTED)
