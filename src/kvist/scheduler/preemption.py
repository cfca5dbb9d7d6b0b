"""Who loses its blocks when memory runs out: a pure choice. Also how much memory admission leaves for growth."""

from __future__ import annotations

from collections.abc import Iterable

from kvist.scheduler.tracked_request import TrackedRequest

FIRST_GUESS_OUTPUT_TOKENS = 64  # expected output until the first request finished
OUTPUT_SMOOTHING = 0.1  # weight of the newest finished request
MAX_CAUTION = 64.0
CAUTION_DECAY_PER_STEP = 0.98
NUM_PREEMPTIONS_FOR_FULL_RESERVE = 2


def choose_victim(running: Iterable[TrackedRequest]) -> TrackedRequest:
    """Return the running request to preempt: lowest priority, then latest arrival. So the oldest always advances."""
    return max(running, key=lambda request: request.rank)


class GrowthReserve:
    """Blocks that admission keeps free for the output of those that run, so that preemption stays rare.

    Expects each request to produce as much as those before it did. Each preemption doubles the caution, which then
    fades. A request that was preempted twice starts again only when everybody's longest output would fit, so the
    number of preemptions per request is bounded.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._expected_output_tokens = float(FIRST_GUESS_OUTPUT_TOKENS)
        self._caution = 1.0

    def note_finished(self, num_output_tokens: int) -> None:
        self._expected_output_tokens += OUTPUT_SMOOTHING * (num_output_tokens - self._expected_output_tokens)

    def note_preempted(self) -> None:
        self._caution = min(self._caution * 2.0, MAX_CAUTION)

    def note_step(self) -> None:
        self._caution = max(self._caution * CAUTION_DECAY_PER_STEP, 1.0)

    def num_blocks(self, running: Iterable[TrackedRequest], candidate: TrackedRequest) -> int:
        """Blocks to leave free when `candidate` starts beside `running`, its own growth included."""
        if candidate.num_preemptions >= NUM_PREEMPTIONS_FOR_FULL_RESERVE:
            growth = [request.num_remaining_tokens for request in running]
            growth.append(candidate.num_remaining_tokens)
        else:
            growth = [self._growth_tokens(request) for request in running]
            growth.append(self._growth_tokens(candidate))
        return sum(-(-num_tokens // self._block_size) for num_tokens in growth)

    def _growth_tokens(self, request: TrackedRequest) -> int:
        missing = max(self._expected_output_tokens - request.num_output_tokens, self._block_size)
        return int(min(missing * self._caution, request.num_remaining_tokens))
