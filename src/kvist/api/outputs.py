"""What the Python API returns. Field names as vLLM's users know them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvist.runtime.generation_types import PositionLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprob:
    """One candidate token: natural-log probability, rank (1 is the likeliest) and text."""

    logprob: float
    rank: int
    decoded_token: str


TokenIdLogprobs = dict[int, Logprob]  # by token id: the token itself and the likeliest ones


@dataclass(slots=True, kw_only=True)
class CompletionOutput:
    """One sample of a request. stop_reason: the stop string or stop token id that ended it, None for EOS."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[TokenIdLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True, kw_only=True)
class RequestMetrics:
    """Times in seconds of a monotonic clock; None: not yet."""

    arrival_time_s: float
    first_token_time_s: float | None = None
    finished_time_s: float | None = None

    @property
    def time_to_first_token_s(self) -> float | None:
        return None if self.first_token_time_s is None else self.first_token_time_s - self.arrival_time_s

    @property
    def end_to_end_latency_s(self) -> float | None:
        return None if self.finished_time_s is None else self.finished_time_s - self.arrival_time_s


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """A request and all its samples so far; complete when `finished`.

    prompt: None if the prompt was given as token ids. prompt_logprobs: by prompt token, None for the first.
    num_cached_tokens: prompt tokens whose KV was really read from the cache.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: Sequence[int]
    outputs: list[CompletionOutput]
    metrics: RequestMetrics
    prompt_logprobs: list[TokenIdLogprobs | None] | None = None
    finished: bool = False
    num_cached_tokens: int = 0


def token_id_logprobs(position: PositionLogprobs) -> TokenIdLogprobs:
    """The token itself first, then the likeliest ones."""
    return {
        entry.token_id: Logprob(logprob=entry.logprob, rank=entry.rank, decoded_token=entry.token)
        for entry in (position.chosen, *position.top)
    }
