"""How well a model predicts a text: log-probabilities of its tokens, and perplexity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from kvist.core.request import RequestId
from kvist.core.sampling_params import SamplingParams
from kvist.engine.executor import Executor
from kvist.engine.lone_step import lone_step, run_idle_step

_REQUEST_ID = RequestId("perplexity")


def token_logprobs(executor: Executor, token_ids: Sequence[int], *, block_size: int) -> list[float]:
    """Natural-log probability of each token but the first, given those before it. One step; leaves no request behind.

    Uses blocks from 0 on: for an executor that serves nobody meanwhile.
    """
    sampling = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    plan = lone_step(_REQUEST_ID, token_ids, sampling, block_size=block_size, samples=False)
    result = executor.finish_step(executor.begin_step(plan))
    run_idle_step(executor, dropped_request_ids=[_REQUEST_ID])
    return [entry.logprob for entry in result.prompt_logprobs.get(0, [])]


def perplexity(logprobs: Iterable[float]) -> float:
    """exp of the mean negative log-probability per token."""
    values = list(logprobs)
    return math.exp(-math.fsum(values) / len(values))
