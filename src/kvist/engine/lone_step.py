"""One prompt alone on an executor that serves nobody: for timing steps and for reading log-probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvist.core.request import RequestId, pack_token_ids
from kvist.core.sampling_params import SamplingParams
from kvist.core.step_plan import BlockMove, ScheduledRequestData, StepPlan, TableEdit
from kvist.engine.executor import Executor


def lone_step(
    request_id: RequestId, token_ids: Sequence[int], sampling: SamplingParams, *, block_size: int, samples: bool
) -> StepPlan:
    """Compute all of a new request's prompt in one step, in blocks from 0 on. samples: and the token after it."""
    num_tokens = len(token_ids)
    data = ScheduledRequestData(
        request_id=request_id,
        token_ids=pack_token_ids(list(token_ids)),
        num_prompt_tokens=num_tokens,
        sampling=sampling,
        sample_index=0,
        eos_token_ids=(),
    )
    return StepPlan(
        step_id=-1,
        request_ids=[request_id],
        start_positions=[0],
        num_scheduled_tokens=[num_tokens],
        samples=[samples],
        num_total_tokens=num_tokens,
        new_requests=[data],
        table_edits=[TableEdit(request_id, 0, list(range(-(-num_tokens // block_size))))],
    )


def run_idle_step(
    executor: Executor, *, dropped_request_ids: Iterable[RequestId] = (), block_moves: Iterable[BlockMove] = ()
) -> None:
    """Let the executor drop requests and move blocks, in a step that computes nothing."""
    plan = StepPlan(
        step_id=-1,
        request_ids=[],
        start_positions=[],
        num_scheduled_tokens=[],
        samples=[],
        num_total_tokens=0,
        block_moves=list(block_moves),
        dropped_request_ids=list(dropped_request_ids),
    )
    executor.finish_step(executor.begin_step(plan))
