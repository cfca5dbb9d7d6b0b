"""How long a step may take for the sake of the streams in it, and whether they could bear one more.

A stream is a request that decodes; its pace is one token per `tpot_s` from its first token on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvist.core.request import Request
from kvist.costmodel.step_time_model import StepTimeModel
from kvist.costmodel.step_work import StepWork
from kvist.scheduler.slack import lead_s

PLANNED_SHARE = 0.98  # of a target that is planned for: what was predicted for the steps to come is not quite so
LENT_SHARE = 0.5  # of its lead that a stream lends to one step
BORROWED_SHARE = 0.5  # of what it could still catch up, that a stream may fall behind
MAX_BORROWED_TOKENS = 64  # over which it would catch up: its answer may end before its limit
MAX_GAP = 3.0  # times its target: the longest time between two tokens that is planned
LOST_GAP = 2.0  # times its target or the time of decodes alone: what a step may take for streams that missed theirs
CATCH_UP_TOKENS = 8  # over which a stream that is too far behind comes back


def work_of_streams(decodes: Sequence[Request]) -> StepWork:
    """A step of these decodes alone."""
    num_decodes = len(decodes)
    num_before = sum(request.num_computed_tokens + request.num_in_flight_tokens for request in decodes)
    return StepWork(
        num_tokens=num_decodes,
        num_sequences=num_decodes,
        num_sampled=num_decodes,
        decode_context_tokens=num_before + num_decodes,
    )


def step_limit(decodes: Sequence[Request], now: float, alone_s: float) -> tuple[float, Request | None]:
    """The longest time for a step that begins at `now`, and the stream that sets it; infinite without streams.

    alone_s: the time of a step of the decodes alone.
    """
    limit_s, tightest = math.inf, None
    for request in decodes:
        allowed_s = _allowed_s(request, now, alone_s)
        if allowed_s < limit_s:
            limit_s, tightest = allowed_s, request
    return limit_s, tightest


def _allowed_s(request: Request, now: float, alone_s: float) -> float:
    """What keeps the mean time between the tokens of `request` on target by its last one.

    Slack may be spent before it is earned: a stream falls behind by at most half of what decodes alone would win back.
    """
    tpot_s = PLANNED_SHARE * request.targets.tpot_s
    lead = lead_s(request, now, pace=PLANNED_SHARE)
    num_left = max(request.max_total_tokens - request.num_tokens - request.num_in_flight_samples, 1)
    borrowed_s = BORROWED_SHARE * min(num_left - 1, MAX_BORROWED_TOKENS) * max(tpot_s - alone_s, 0.0)
    if lead + borrowed_s >= 0.0:
        return min(tpot_s + borrowed_s + (LENT_SHARE * lead if lead > 0.0 else lead), MAX_GAP * tpot_s)
    if alone_s > tpot_s + lead / num_left:  # lost, whatever this step holds: it holds nobody else down
        return LOST_GAP * max(tpot_s, alone_s)
    return tpot_s + lead / min(num_left, CATCH_UP_TOKENS)


class StreamRoom:
    """Whether all that run, once their prompts are done, could bear one more stream beside them."""

    def __init__(self, step_times: StepTimeModel, decoding: Sequence[Request], prefilling: Sequence[Request]) -> None:
        self._step_times = step_times
        self._work = work_of_streams(decoding)
        self._target_s = min((request.targets.tpot_s for request in decoding), default=math.inf)
        for request in prefilling:
            self._work, self._target_s = self._with(request)

    def take(self, request: Request, share: float) -> bool:
        """Count `request` in if a step of streams alone then takes at most `share` of the tightest target.

        Alone it always may, and whoever cannot reach its target even alone bears any company.
        """
        work, target_s = self._with(request)
        if self._work.num_tokens and self._step_times.predict_s(work) > share * target_s:
            return False
        self._work, self._target_s = work, target_s
        return True

    def _with(self, request: Request) -> tuple[StepWork, float]:
        num_context = request.num_tokens
        alone = StepWork.of([(1, num_context)], num_sampled=1)
        is_lost = self._step_times.predict_s(alone) > request.targets.tpot_s
        target_s = math.inf if is_lost else request.targets.tpot_s
        return self._work.plus(1, num_context, is_sampled=True), min(self._target_s, target_s)
