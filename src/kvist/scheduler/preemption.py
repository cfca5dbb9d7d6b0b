"""Who loses its blocks when memory runs out: a pure choice. Also how much memory admission leaves for growth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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

    def note_steps(self, number: int) -> None:
        while number > 0 and self._caution > 1.0:
            self._caution = max(self._caution * CAUTION_DECAY_PER_STEP, 1.0)
            number -= 1

    def tally(self, running: Sequence[TrackedRequest]) -> GrowthTally:
        """Start adding up the growth of `running` and of those that start beside them in one step."""
        return GrowthTally(self, running)

    def growth_blocks(self, request: TrackedRequest, *, at_most: bool) -> int:
        """Blocks that `request` is expected to take yet, or may take at most."""
        num_tokens = request.num_remaining_tokens
        if not at_most:
            missing = max(self._expected_output_tokens - request.num_output_tokens, self._block_size)
            num_tokens = int(min(missing * self._caution, num_tokens))
        return -(-num_tokens // self._block_size)

    @property
    def most_expected_blocks(self) -> int:
        """No request is expected to take more than that."""
        most_tokens = int(max(self._expected_output_tokens, self._block_size) * self._caution)
        return -(-most_tokens // self._block_size)


class GrowthTally:
    """Sums growth over the running set once, where a bound does not do, and then adds those that start."""

    def __init__(self, reserve: GrowthReserve, running: Sequence[TrackedRequest]) -> None:
        self._reserve = reserve
        self._running = running
        self._sums: dict[bool, int] = {}  # by `at_most`
        self._started: list[TrackedRequest] = []

    def fits(self, candidate: TrackedRequest, *, num_taken: int, num_available: int) -> bool:
        """Whether `num_taken` blocks leave enough of those available for everybody's growth if `candidate` starts."""
        num_growing = len(self._running) + len(self._started) + 1
        most_blocks = num_growing * self._reserve.most_expected_blocks
        is_usual = candidate.num_preemptions < NUM_PREEMPTIONS_FOR_FULL_RESERVE
        if is_usual and num_taken + most_blocks <= num_available:
            return True  # with much memory free, this tells without a look at each of those that run
        return num_taken + self.num_blocks(candidate) <= num_available

    def num_blocks(self, candidate: TrackedRequest) -> int:
        """Blocks to leave free when `candidate` starts, its own growth included."""
        at_most = candidate.num_preemptions >= NUM_PREEMPTIONS_FOR_FULL_RESERVE
        if at_most not in self._sums:
            self._sums[at_most] = sum(
                self._reserve.growth_blocks(request, at_most=at_most) for request in [*self._running, *self._started]
            )
        return self._sums[at_most] + self._reserve.growth_blocks(candidate, at_most=at_most)

    def add(self, started: TrackedRequest) -> None:
        self._started.append(started)
        for at_most in self._sums:
            self._sums[at_most] += self._reserve.growth_blocks(started, at_most=at_most)
