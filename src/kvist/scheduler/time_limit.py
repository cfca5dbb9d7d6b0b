"""What still fits into a step that is to end in time: the most tokens of a prompt, and the most drafts."""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec.structs import replace

from kvist.core.step_plan import chunk_pairs
from kvist.costmodel.step_time_model import StepTimeModel
from kvist.costmodel.step_work import StepWork


def upper_s(step_times: StepTimeModel, work: StepWork) -> float:
    """The time of a step with its error bar."""
    return step_times.predict_s(work) + step_times.margin_s(work)


def largest_chunk(step_times: StepTimeModel, work: StepWork, num_context: int, num_wanted: int, limit_s: float) -> int:
    """The most tokens after `num_context` others, up to `num_wanted`, with which a step of `work` takes `limit_s`."""
    return _most(
        num_wanted,
        limit_s,
        lambda num_tokens: upper_s(step_times, work.plus(num_tokens, num_context, is_sampled=True)),
    )


def most_drafts(
    step_times: StepTimeModel, work: StepWork, *, num_decodes: int, mean_context: int, num_wanted: int, limit_s: float
) -> int:
    """The most drafts, up to `num_wanted`, that its `num_decodes` decodes can verify in a step within `limit_s`.

    mean_context: tokens before a decode's. The drafts are thought of as dealt out evenly.
    """

    def time_s(num_drafts: int) -> float:
        num_rows = min(num_drafts, num_decodes)
        num_each = -(-num_drafts // num_rows)
        return upper_s(
            step_times,
            replace(
                work,
                num_tokens=work.num_tokens + num_drafts,
                num_sampled=work.num_sampled + num_drafts,
                decode_context_tokens=max(work.decode_context_tokens - num_rows * (mean_context + 1), 0),
                prefill_pairs=work.prefill_pairs + num_rows * chunk_pairs(1 + num_each, mean_context),
                prefill_context_tokens=work.prefill_context_tokens + num_rows * (mean_context + 1 + num_each),
            ),
        )

    return _most(num_wanted, limit_s, time_s)


def _most(num_wanted: int, limit_s: float, time_s: Callable[[int], float]) -> int:
    """The largest of 0 to `num_wanted` whose time is within the limit. time_s: rises with its argument."""
    if num_wanted <= 0 or limit_s == math.inf or time_s(num_wanted) <= limit_s:
        return max(num_wanted, 0)
    low, high = 0, num_wanted  # low is granted, high is too much
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if time_s(middle) <= limit_s else (low, middle)
    return low
