"""Undoes a broken step: the scheduler is as it was before `schedule`, except for requests that start over.

A broken forward pass leaves vLLM's runner usable, and its KV is written again with the same values.
"""

from __future__ import annotations

import time

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine.core import EngineCore


def rewind(core: EngineCore, scheduled: SchedulerOutput) -> list[str]:
    """Undoes a `schedule` whose `compute` ended with BrokenStep. Returns the requests that start over; others continue.

    `schedule` counts tokens as computed, and puts their blocks into the prefix cache, before they are. The blocks stay
    with their requests and leave the cache. A request that was new in the step, or resumed in it, may have found such
    blocks there: it is preempted.
    """
    scheduler = core.scheduler
    block_tokens = core.vllm_config.cache_config.block_size
    for request_id, tokens in scheduled.num_scheduled_tokens.items():
        request = scheduler.requests[request_id]
        request.num_computed_tokens -= tokens
        request.num_in_flight_tokens -= tokens
        blocks = scheduler.kv_cache_manager.get_block_ids(request_id)[0]
        scheduler.kv_cache_manager.evict_blocks(set(blocks[request.num_computed_tokens // block_tokens :]))
    over = [new.req_id for new in scheduled.scheduled_new_reqs if new.num_computed_tokens > 0]
    over += sorted(scheduled.scheduled_cached_reqs.resumed_req_ids)
    for request_id in over:
        request = scheduler.requests[request_id]
        scheduler.running.remove(request)
        scheduler._preempt_request(request, time.monotonic())
        scheduler.prev_step_scheduled_req_ids.discard(request_id)
    return over
