"""May a request enter? Fit, bounds and deadline, as pure functions that one engine and a whole cluster can call."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from kvist.core.errors import InvalidRequestError, QueueFullError, RequestTooLongError
from kvist.core.request import NewRequest
from kvist.kvcache.token_blocks import TOKEN_BYTES

MIN_RETRY_AFTER_S = 1.0
MAX_RETRY_AFTER_S = 600.0
RATE_SMOOTHING = 0.1
MAX_PRIORITY = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityLimits:
    """What one request may take at most: the model's context and the KV pool, in tokens."""

    max_model_len: int
    num_pool_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLoad:
    """What waits now, what may wait, and how fast requests start. Rates are None until something was measured."""

    num_waiting: int
    num_waiting_tokens: int
    num_free_seqs: int
    max_num_queued_reqs: int
    max_num_queued_tokens: int | None
    started_per_s: float | None
    tokens_per_s: float | None


def check_request(new: NewRequest) -> int:
    """Return the number of prompt tokens. Raises InvalidRequestError for values that would spoil the state."""
    num_prompt_tokens, num_odd_bytes = divmod(len(new.prompt_token_ids), TOKEN_BYTES)
    if num_odd_bytes:
        raise InvalidRequestError("prompt_token_ids is not packed int32", param="prompt")
    if abs(new.priority) > MAX_PRIORITY:
        raise InvalidRequestError(f"priority must be within ±{MAX_PRIORITY}", param="priority")
    if not 0 <= new.num_incoming_tokens < max(num_prompt_tokens, 1):
        raise InvalidRequestError(
            f"num_incoming_tokens must be fewer than the {num_prompt_tokens} prompt tokens", param="num_incoming_tokens"
        )
    if new.deadline_s is not None and math.isnan(new.deadline_s):
        raise InvalidRequestError("deadline_s is not a number", param="deadline_s")
    return num_prompt_tokens


def total_tokens_limit(new: NewRequest, num_prompt_tokens: int, limits: CapacityLimits) -> int:
    """Return prompt + output tokens at which `new` stops for length.

    Raises InvalidRequestError for an empty prompt, RequestTooLongError if it could never finish here.
    """
    if num_prompt_tokens == 0:
        raise InvalidRequestError("the prompt holds no tokens; send at least one", param="prompt")
    max_tokens = new.sampling.max_tokens
    largest = min(limits.max_model_len, limits.num_pool_tokens)
    least = num_prompt_tokens + (1 if max_tokens is None else max_tokens)
    if least > largest:
        asked = f"{num_prompt_tokens} prompt tokens" + ("" if max_tokens is None else f" + max_tokens {max_tokens}")
        bound, cure = (
            (f"the context is {limits.max_model_len} tokens", "Shorten the prompt or lower max_tokens.")
            if limits.max_model_len <= limits.num_pool_tokens
            else (f"the KV pool holds {limits.num_pool_tokens} tokens", "Shorten it or raise kv_cache_bytes.")
        )
        raise RequestTooLongError(f"the request needs {asked}; {bound}. {cure}", param="prompt")
    return largest if max_tokens is None else least


def check_queue(load: QueueLoad, num_prompt_tokens: int) -> None:
    """Raise QueueFullError if one more request with that prompt exceeds the queue's bounds.

    Requests for which a running place is free do not count as queued: an idle engine never refuses.
    """
    num_excess = load.num_waiting + 1 - load.num_free_seqs - load.max_num_queued_reqs
    if num_excess > 0:
        raise QueueFullError(
            f"{load.num_waiting} requests wait and at most {load.max_num_queued_reqs} may. Try again later.",
            retry_after_s=_retry_after_s(num_excess, load.started_per_s),
        )
    if load.max_num_queued_tokens is None or load.num_waiting == 0:
        return
    num_excess = load.num_waiting_tokens + num_prompt_tokens - load.max_num_queued_tokens
    if num_excess > 0:
        raise QueueFullError(
            f"{load.num_waiting_tokens} prompt tokens wait, this request adds {num_prompt_tokens} and at most "
            f"{load.max_num_queued_tokens} may wait. Try again later.",
            retry_after_s=_retry_after_s(num_excess, load.tokens_per_s),
        )


def _retry_after_s(num_excess: int, per_s: float | None) -> float:
    """Seconds until `num_excess` have gone; the least when nothing was measured, as a guess must not scare away."""
    if not per_s:
        return MIN_RETRY_AFTER_S
    return min(max(num_excess / per_s, MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)


class StartRate:
    """Requests and their prompt tokens started per second of stepping, smoothed over steps that started any."""

    def __init__(self) -> None:
        self.started_per_s: float | None = None
        self.tokens_per_s: float | None = None
        self._elapsed_s = 0.0

    def note_steps_without_starts(self, step_times_s: Iterable[float]) -> None:
        for step_time_s in step_times_s:
            self._elapsed_s += step_time_s

    def note_step(self, *, num_started: int, num_tokens: int, step_time_s: float) -> None:
        self._elapsed_s += step_time_s
        if num_started == 0 or self._elapsed_s <= 0.0:
            return
        started_per_s = num_started / self._elapsed_s
        tokens_per_s = num_tokens / self._elapsed_s
        self._elapsed_s = 0.0
        if self.started_per_s is None or self.tokens_per_s is None:
            self.started_per_s, self.tokens_per_s = started_per_s, tokens_per_s
        else:
            self.started_per_s += RATE_SMOOTHING * (started_per_s - self.started_per_s)
            self.tokens_per_s += RATE_SMOOTHING * (tokens_per_s - self.tokens_per_s)
