"""What one step gave back. Written by an executor, read by the scheduler."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvist.core.request import RequestId


class TokenLogprobs(msgspec.Struct, frozen=True, gc=False):
    """Natural-log probabilities at one position: of the token itself, its rank (1 = best), and the k best."""

    token_id: int
    logprob: float
    rank: int
    top_token_ids: list[int]
    top_logprobs: list[float]


class StepResult(msgspec.Struct):
    """Result of the plan with the same `step_id`; `sampled_token_ids` has one entry per row of the plan.

    sampled_token_ids: () for a row that does not sample, one token as a rule, more when drafts were
    accepted: these, then the token sampled after them.
    logprobs: by row, one entry per sampled token, for requests that asked.
    prompt_logprobs: by row, one entry per scheduled prompt token i, for the token at i + 1 of the prompt (so the
    first prompt token has none, and the last prompt token's entry is left out), for requests that asked.
    errors: requests that failed alone (say, logits that are not finite), with a message; their rows sample nothing.
    step_time_s: set by the driver, from its clock.
    """

    step_id: int
    sampled_token_ids: list[Sequence[int]]
    logprobs: dict[int, list[TokenLogprobs]] = {}
    prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
    errors: dict[RequestId, str] = {}
    step_time_s: float = 0.0
