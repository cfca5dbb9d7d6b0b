"""One request of a benchmark as a client saw it, whether the time is real or virtual, and its latencies.

Times are seconds after the start of the run. The formulas are those of `definitions`.

A delivery is what came at one moment: (time, number of tokens). Where k tokens come together, d after the delivery
before them, each of the k has an inter-token latency of d / k: their sum is the time that passed, and no token counts
as free. The gap d, the wait that a reader sees, is kept apart. Tokens that come with the first have no such latency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from kvist.metrics.definitions import RequestTimes, meets_targets, time_per_output_token_s

Delivery = tuple[float, int]


class Outcome(StrEnum):
    """REJECTED: the server would not take it (429, 503). UNFINISHED: the run ended before it did."""

    COMPLETED = "completed"
    FAILED = "failed"
    REJECTED = "rejected"
    UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What a request must keep to be good; None: no such target."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2el_s: float | None = None

    @property
    def is_any(self) -> bool:
        return (self.ttft_s, self.tpot_s, self.e2el_s) != (None, None, None)


NO_TARGETS = Targets()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRequest:
    """See the module.

    arrival_s: when it was due; sent_s: when it was sent. Latencies count from sent_s; in an open loop the difference is
    the client's own error, in a closed loop its wait for a place. finished_s: when the answer ended, or failed.
    samples: deliveries of each sample of the answer. num_cached_tokens: of the prompt, None if the server does not say.
    """

    index: int
    arrival_s: float
    sent_s: float
    finished_s: float
    outcome: Outcome
    num_prompt_tokens: int
    samples: Sequence[Sequence[Delivery]] = ()
    num_cached_tokens: int | None = None
    session_id: str | None = None
    error: str = ""
    texts: Sequence[str] = ()
    targets: Targets = NO_TARGETS

    @property
    def is_completed(self) -> bool:
        return self.outcome is Outcome.COMPLETED

    @property
    def num_output_tokens(self) -> int:
        return sum(count for sample in self.samples for _, count in sample)

    @property
    def first_token_s(self) -> float | None:
        """When the first token of any sample came."""
        return min((sample[0][0] for sample in self.samples if sample), default=None)

    @property
    def ttft_s(self) -> float | None:
        first_s = self.first_token_s
        return None if first_s is None else first_s - self.sent_s

    @property
    def e2el_s(self) -> float:
        return self.finished_s - self.sent_s

    def tpots_s(self) -> list[float]:
        """One of each sample that has two tokens."""
        values = (time_per_output_token_s(self._times(sample)) for sample in self.samples if sample)
        return [value for value in values if value is not None]

    def itls_s(self) -> list[float]:
        """One of each token after a sample's first delivery, sample after sample."""
        return [
            (later_s - earlier_s) / count
            for sample in self.samples
            for (earlier_s, _), (later_s, count) in pairwise(sample)
            for _ in range(count)
        ]

    def gaps_s(self) -> list[float]:
        """One of each delivery after a sample's first."""
        return [later[0] - earlier[0] for sample in self.samples for earlier, later in pairwise(sample)]

    def meets_targets(self) -> bool:
        """Whether it completed, each sample within the targets. One that failed meets none."""
        if not self.is_completed:
            return False
        if self.targets.e2el_s is not None and self.e2el_s > self.targets.e2el_s:
            return False
        return all(meets_targets(self._times(sample)) for sample in self.samples)

    def _times(self, sample: Sequence[Delivery]) -> RequestTimes:
        return RequestTimes(
            queued_s=self.sent_s,
            num_prompt_tokens=self.num_prompt_tokens,
            first_token_s=sample[0][0] if sample else None,
            last_token_s=sample[-1][0] if sample else None,
            num_output_tokens=sum(count for _, count in sample),
            ttft_target_s=self.targets.ttft_s,
            tpot_target_s=self.targets.tpot_s,
        )
