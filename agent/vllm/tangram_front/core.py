"""The engine of vLLM's AsyncLLM: a session with the gateway.

To generate text, AsyncLLM needs four coroutines of an EngineCoreClient. All others configure, pause or profile an
engine over HTTP, on paths that the gateway does not pass on.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
from vllm import SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason
from vllm.v1.engine.core_client import EngineCoreClient
from vllm.v1.outputs import LogprobsLists

from .messages import FINISH_CANCELLED, FINISH_LENGTH, FINISH_STOP, Submit
from .session import Ended, Session

REASONS = {FINISH_LENGTH: FinishReason.LENGTH, FINISH_STOP: FinishReason.STOP, FINISH_CANCELLED: FinishReason.ABORT}


class _Resources:
    engine_dead = False


class Core(EngineCoreClient):
    """For one event loop. `ended` is set when the session has ended, to the reason."""

    def __init__(self, session: Session) -> None:
        self.resources = _Resources()
        self.engine_ranks_managed = [0]
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._session = session
        self._eos: dict[str, int | None] = {}  # of the running requests

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        submit = submit_of(request)
        self._eos[request.request_id] = request.sampling_params.eos_token_id
        self._session.submit(submit)

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        for request in request_ids:
            if self._eos.pop(request, self) is not self:
                self._session.cancel(request)

    async def get_output_async(self) -> EngineCoreOutputs:
        try:
            while True:
                outputs = [output for piece in await self._session.pieces() if (output := self._output(piece))]
                if outputs:
                    return EngineCoreOutputs(outputs=outputs)
        except Ended as error:
            if not self.ended.done():
                self.ended.set_result(str(error))
            raise

    def _output(self, piece: Any) -> EngineCoreOutput | None:
        if piece.request not in self._eos:
            return None  # it was aborted here
        tokens, eos = list(piece.tokens), self._eos[piece.request]
        reason = FinishReason.ERROR if piece.error else REASONS.get(piece.finish)
        if reason is not None:
            del self._eos[piece.request]
        stop = tokens[-1] if reason is FinishReason.STOP and tokens[-1] != eos else None
        return EngineCoreOutput(piece.request, tokens, finish_reason=reason, stop_reason=stop, new_logprobs=_logprobs(piece))

    async def get_supported_tasks_async(self) -> tuple[str, ...]:
        return ("generate",)

    def shutdown(self, timeout: float | None = None) -> None:
        pass


def _logprobs(piece: Any) -> LogprobsLists | None:
    """In the form of an engine: a row for each token."""
    if not piece.logprobs:
        return None
    return LogprobsLists(np.array([p.tokens for p in piece.logprobs]), np.array([p.values for p in piece.logprobs], np.float32),
                         np.array([p.rank for p in piece.logprobs]))


def submit_of(request: EngineCoreRequest) -> Any:
    """In the gateway's form. ValueError: a setting that ranks do not compute, and that the gateway did not reject."""
    sampling, prompt = request.sampling_params, request.prompt_token_ids
    if sampling is None or prompt is None:
        raise ValueError("only texts are generated, of prompts that are texts or token ids")
    wrong = [name for name, default in _ONLY.items() if getattr(sampling, name) not in (default, None)]
    if wrong:
        raise ValueError(f"{', '.join(wrong)}: not supported")
    stops = set(sampling.stop_token_ids or ())
    if sampling.eos_token_id is not None:  # None: the client ignores it
        stops.add(sampling.eos_token_id)
    return Submit(
        request=request.request_id, prompt=prompt, max_tokens=sampling.max_tokens, temperature=sampling.temperature, top_p=sampling.top_p,
        seed=random.getrandbits(64) if sampling.seed is None else sampling.seed % 2**64, stop_tokens=sorted(stops), cache_salt=request.cache_salt or "",
        min_tokens=sampling.min_tokens, top_k=max(sampling.top_k, 0), min_p=sampling.min_p, presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty, repetition_penalty=0 if sampling.repetition_penalty == 1 else sampling.repetition_penalty,
        logit_bias=sampling.logit_bias or {}, logprobs=sampling.logprobs,
    )


# Fields of SamplingParams that change tokens and that no Submit has, with the value that disables each. This process
# handles `stop` and the conversion of tokens to text itself.
_ONLY: dict[str, Any] = {
    "n": 1, "prompt_logprobs": None, "bad_words": [], "allowed_token_ids": None, "structured_outputs": None, "logprob_token_ids": None,
    "repetition_detection": None, "thinking_token_budget": None,
}
_ONLY = {name: default for name, default in _ONLY.items() if name in SamplingParams.__struct_fields__}
