"""What a policy sees and what it returns. A policy decides; the scheduler allocates blocks and changes state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvist.core.request import Request, RequestId
from kvist.costmodel.step_time_model import StepTimeModel


class Candidate(NamedTuple):
    """A waiting request that may start now, and the tokens that the cache does not hold for it (at least 1)."""

    request: Request
    num_new_tokens: int


@dataclass(slots=True, kw_only=True)
class PolicyView:
    """The scheduler's state as a policy may read it. Nothing in it may be changed.

    decoding: running requests with one token to schedule, in order of admission.
    prefilling: running requests with more of their prompt to schedule, in order of admission.
    waiting: requests that may start, in queue order. Lazy: each one drawn costs a look into the prefix tree, so
        draw no more than the budget can use. It ends where sequence limit or memory end.
    max_chunk_tokens: longest chunk of one prompt in a step.
    num_admitted_since_idle: requests admitted since the running set was last empty.
    now: when the step will begin to compute.
    step_times: predicts how long a step takes.
    prefill_slowdown: how many times longer prompts take now than on an engine that has nothing else to do.
    """

    decoding: Sequence[Request]
    prefilling: Sequence[Request]
    waiting: Iterable[Candidate]
    max_chunk_tokens: int
    num_admitted_since_idle: int
    now: float
    step_times: StepTimeModel
    prefill_slowdown: float


class Cut(NamedTuple):
    """Why a chunk is shorter than budget and prompt allow: for a stream's `tpot_s` the step is to end by `limit_s`."""

    request: Request
    num_tokens: int  # granted, maybe none
    num_wanted_tokens: int
    limit_s: float
    tpot_s: float


@dataclass(slots=True)
class Grants:
    """Tokens granted in one step. decodes get one each; chunks are of running or of waiting requests.

    cuts: chunks that a limit on time kept short, for explanations.
    limit_s: the longest that the step may be predicted to take, drafts included; infinite where nobody minds.
    """

    decodes: Sequence[Request] = ()
    chunks: list[tuple[Request, int]] = field(default_factory=list)
    num_padding_tokens: int = 0
    cuts: list[Cut] = field(default_factory=list)
    limit_s: float = math.inf

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes, padding included: what the budget bounds."""
        return len(self.decodes) + sum(num_tokens for _, num_tokens in self.chunks) + self.num_padding_tokens

    def by_request(self) -> dict[RequestId, int]:
        """The same grants as a mapping, for tests and explanations."""
        granted = {request.request_id: 1 for request in self.decodes}
        granted.update({request.request_id: num_tokens for request, num_tokens in self.chunks})
        return granted


Policy = Callable[[PolicyView, int], Grants]
