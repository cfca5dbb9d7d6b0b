"""How well a model predicts a text: log-probabilities of its tokens, and perplexity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from kvist.core.request import RequestId, pack_token_ids
from kvist.core.sampling_params import SamplingParams
from kvist.core.step_plan import ScheduledRequestData, StepPlan, TableEdit
from kvist.engine.executor import Executor

_REQUEST_ID = RequestId("perplexity")


def token_logprobs(executor: Executor, token_ids: Sequence[int], *, block_size: int) -> list[float]:
    """Natural-log probability of each token but the first, given those before it. One step; leaves no request behind.

    Uses blocks from 0 on: for an executor that serves nobody meanwhile.
    """
    data = ScheduledRequestData(
        request_id=_REQUEST_ID,
        token_ids=pack_token_ids(list(token_ids)),
        num_prompt_tokens=len(token_ids),
        sampling=SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0),
        sample_index=0,
        eos_token_ids=(),
    )
    plan = StepPlan(
        step_id=-1,
        request_ids=[_REQUEST_ID],
        start_positions=[0],
        num_scheduled_tokens=[len(token_ids)],
        samples=[False],
        num_total_tokens=len(token_ids),
        new_requests=[data],
        table_edits=[TableEdit(_REQUEST_ID, 0, list(range(-(-len(token_ids) // block_size))))],
    )
    result = executor.finish_step(executor.begin_step(plan))
    forget = StepPlan(
        step_id=-1,
        request_ids=[],
        start_positions=[],
        num_scheduled_tokens=[],
        samples=[],
        num_total_tokens=0,
        dropped_request_ids=[_REQUEST_ID],
    )
    executor.finish_step(executor.begin_step(forget))
    return [entry.logprob for entry in result.prompt_logprobs.get(0, [])]


def perplexity(logprobs: Iterable[float]) -> float:
    """exp of the mean negative log-probability per token."""
    values = list(logprobs)
    return math.exp(-math.fsum(values) / len(values))
