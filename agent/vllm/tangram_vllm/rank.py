"""One rank: vLLM's EngineCore under the kit's step loop."""

from __future__ import annotations

import json
import pathlib
import tempfile
from collections.abc import Iterable, Sequence

import msgspec
import torch
from tangram_client import DType, EngineStats, Maps
from tangram_engine import Entry, Finish, Kit, KvLayout, Logprobs, NoRoom, PeerGone, Refusal, Refused, Request, Step, Submit

from . import carried, engine, kv
from .binding import Binding, bind
from .exchange import BrokenStep
from .families import family_of
from .mesh import MeshExchange
from .ops import Operator
from .rewind import rewind

DTYPES = {DType.F32: torch.float32, DType.BF16: torch.bfloat16}
FINISH = {"length": Finish.LENGTH, "stop": Finish.STOP}


class Rank:
    """A tangram_engine.Backend."""

    can = ("min_tokens", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "logprobs")

    def __init__(self, kit: Kit, *, max_model_len: int, max_batch_tokens: int, max_requests: int, block_tokens: int, threads: int = 1,
                 private_experts: bool = False) -> None:
        """Makes the EngineCore over the agent's memory. ValueError names what vLLM or its tables do not compute.

        private_experts: computes with copies of the experts' pieces.
        """
        model = kit.client.model
        if model.dtype not in DTYPES:
            raise ValueError(f"weights of {DType(model.dtype).name} are not computed: {', '.join(d.name for d in DTYPES)} are")
        dtype = DTYPES[DType(model.dtype)]
        self.kit = kit
        self.exchange = MeshExchange(kit, Operator(threads), dtype, private=private_experts)
        dense = {name: torch.from_dlpack(kit.client.dense(name, early=True)) for name in kit.client.dense_names}
        bind(Binding(family_of(json.loads(model.config_json)), dense, torch.from_dlpack(kit.client.kv), self.exchange))
        self._dir = tempfile.TemporaryDirectory(prefix="tangram-vllm-")
        pathlib.Path(self._dir.name, "config.json").write_bytes(model.config_json)
        settings = engine.Settings(
            dtype=str(dtype).removeprefix("torch."), kv_bytes=len(kit.client.kv.data), block_tokens=block_tokens, max_model_len=max_model_len,
            max_batch_tokens=max_batch_tokens, max_requests=min(max_requests, max_batch_tokens),
        )
        torch.set_num_threads(threads)
        self.core = engine.make_core(self._dir.name, settings)
        self.max_tokens, self.vocabulary = max_model_len, self.core.vllm_config.model_config.get_vocab_size()
        self._batch, self._block_tokens = max_batch_tokens, block_tokens
        self._kv = self._blocks(kv.format_of(dict(self._caches())))
        self._gateways: dict[str, str] = {}
        self._reserved: list[tuple[carried.Reserved, str]] = []
        self._held: dict[str, carried.Held] = {}

    def _caches(self) -> Iterable[tuple[str, torch.Tensor]]:
        layers = self.core.vllm_config.compilation_config.static_forward_context
        return ((name, layer.kv_cache) for name, layer in layers.items() if getattr(layer, "kv_cache", None) is not None and len(layer.kv_cache))

    def _blocks(self, format_: kv.KvFormat) -> KvLayout:
        bytes_ = format_.heads * format_.whole_page_bytes
        if format_.head_stride != format_.whole_page_bytes:
            raise ValueError("heads of a block do not lie side by side: blocks are not carried as wholes")
        return KvLayout(format_.offset, format_.layer_stride, format_.block_stride, bytes_, format_.blocks, 0)

    # Requests.

    def submit(self, submit: Submit) -> None:
        if submit.request in self.core.scheduler.requests:
            self.kit.refuse(submit.gateway, submit.request, Refusal.RUNNING, "it is here already")
            return
        try:
            sampling = engine.SamplingParams(
                temperature=submit.temperature, top_p=submit.top_p, seed=submit.seed if submit.temperature > 0 else None, max_tokens=submit.max_tokens,
                stop_token_ids=submit.stop_tokens, ignore_eos=True, min_tokens=submit.min_tokens, top_k=submit.top_k, min_p=submit.min_p,
                presence_penalty=submit.presence_penalty, frequency_penalty=submit.frequency_penalty,
                repetition_penalty=submit.repetition_penalty or 1, logit_bias=dict(submit.logit_bias) or None, logprobs=submit.logprobs,
            )
            request = engine.new_request(self.core, submit.request, submit.prompt, sampling, submit.cache_salt or None, submit.generated)
        except ValueError as error:
            self.kit.refuse(submit.gateway, submit.request, Refusal.INVALID, str(error))
            return
        self._gateways[submit.request] = submit.gateway
        carried.begin(self.core, request)

    def cancel(self, request: str) -> bool:
        if request not in self.core.scheduler.requests:
            return False
        self.gone(request)
        return True

    def stats(self) -> EngineStats:
        pool, scheduler = self.core.scheduler.kv_cache_manager.block_pool, self.core.scheduler
        # vLLM reserves one block for padding.
        return EngineStats(kv_pages=pool.num_gpu_blocks - 1, kv_free_pages=pool.get_num_free_blocks(), running=len(scheduler.running),
                           waiting=len(scheduler.waiting))

    # A step.

    def fits(self, target: Maps, repair: bool) -> None:
        if any(len(group.ranks) > 1 for layer in target.layers for group in layer.attention):
            raise Refused("attention of a request over several ranks: vLLM keeps it on one")

    def announce(self, step: int) -> tuple[int, bool]:
        """The step is not scheduled yet: a flip that follows would have to undo it."""
        left = sum(max(1, r.num_tokens - r.num_computed_tokens) for r in self.core.scheduler.requests.values())
        return min(left, self._batch), left > 0

    def compute(self, step: Step) -> None:
        scheduled = engine.schedule(self.core)
        try:
            output = engine.compute(self.core, scheduled)
        except BrokenStep as error:
            rewind(self.core, scheduled)
            raise PeerGone(str(error)) from error
        try:
            self.kit.may_emit()
        except PeerGone as error:  # tokens were sampled, and cannot be undone
            raise RuntimeError(f"left out at the end of a step: {error}") from error
        for produced in engine.update(self.core, scheduled, output):
            self._emit(produced)

    def _emit(self, produced: engine.Produced) -> None:
        gateway = self._gateways[produced.request_id]
        finish = Finish.GOES_ON
        if produced.finished is not None:
            finish = FINISH.get(produced.finished, Finish.CANCELLED)
            del self._gateways[produced.request_id]
        last = len(produced.tokens) - 1
        for i, token in enumerate(produced.tokens):
            logprobs = None
            if (told := produced.logprobs) is not None:
                logprobs = Logprobs(told.logprob_token_ids[i].tolist(), told.logprobs[i].tolist(), int(told.sampled_token_ranks[i]))
            self.kit.emit(gateway, produced.request_id, produced.begin + i, token, finish if i == last else Finish.GOES_ON, logprobs)

    # A flip.

    def kv_layout(self) -> KvLayout:
        layout = self._kv
        free = self.core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        return KvLayout(layout.offset, layout.layer_stride, layout.block_stride, layout.block_bytes, layout.blocks, free)

    def manifest(self) -> Iterable[Request]:
        requests = sorted(carried.manifest(self.core), key=lambda c: c.computed == 0)
        for c in requests:
            reserved = len(c.prompt) + len(c.output) + c.left
            generation = self.core.scheduler.requests[c.id].num_preemptions
            yield Request(c.id, self._gateways[c.id], c.computed > 0, c.computed, reserved, c.blocks, msgspec.msgpack.encode(c), generation)

    def adopt(self, request: Request) -> Sequence[int]:
        reserved = carried.reserve(self.core, msgspec.msgpack.decode(request.state, type=carried.Carried), self._held.pop(request.request, None))
        if reserved is None:
            raise NoRoom(f"{len(request.blocks)} blocks for {request.request}")
        self._reserved.append((reserved, request.gateway))
        return reserved.blocks[: len(request.blocks)]

    def drop(self) -> None:
        for reserved, _ in self._reserved:
            carried.release(self.core, reserved)
        self._reserved.clear()

    def gone(self, request: str) -> None:
        carried.drop(self.core, [request])
        self._gateways.pop(request, None)

    # KV ahead of a flip.

    def progress(self) -> Iterable[Request]:
        for r in carried.running(self.core):
            yield Request(r.id, "", True, r.computed, r.most, r.blocks, b"", r.generation)

    def reserve(self, request: str, count: int) -> Sequence[int]:
        held = self._held.get(request) or carried.Held(self.core, request)
        blocks = held.grow(count)
        if blocks is None:
            raise NoRoom(f"{count} blocks ahead for {request}")
        self._held[request] = held
        return blocks

    def unreserve(self, request: str) -> None:
        self._held.pop(request).release()

    def enter(self, maps: Maps, entry: Entry) -> None:
        self.exchange.enter(maps)
        for reserved, gateway in self._reserved:
            self._gateways[reserved.carried.id] = gateway
            carried.admit(self.core, reserved)
        self._reserved.clear()

    def leave(self) -> None:
        self.exchange.leave()
        self.drop()
        carried.drop(self.core, list(self.core.scheduler.requests))
        self._gateways.clear()
