"""What a drafted token costs, beside the tokens that a step computes anyway, learned from step times."""

from __future__ import annotations

import math
from dataclasses import dataclass

FIRST_GUESS_PRICE = 0.3
LOWEST_PRICE = 0.02
NUM_EXACT_SIZES = 16  # steps of up to so many tokens are told apart, larger ones by about a fifth
CLASSES_PER_DOUBLING = 4
NUM_STEPS_TO_KNOW = 6
NEWEST_WEIGHT = 0.05
LONGEST_STEP_RATIO = 3.0  # a step that took longer than this times the mean was held up by something else


@dataclass(slots=True)
class _Line:
    """Step time over number of drafts, fitted by least squares to the latest steps of about one size."""

    num_steps: int = 0
    mean_base: float = 0.0
    mean_drafts: float = 0.0
    mean_time_s: float = 0.0
    variance: float = 0.0
    covariance: float = 0.0

    def add(self, num_base_tokens: int, num_draft_tokens: int, step_time_s: float) -> None:
        self.num_steps += 1
        weight = max(1.0 / self.num_steps, NEWEST_WEIGHT)
        if self.num_steps > NUM_STEPS_TO_KNOW:
            step_time_s = min(step_time_s, LONGEST_STEP_RATIO * self.mean_time_s)
        drafts_off, time_off = num_draft_tokens - self.mean_drafts, step_time_s - self.mean_time_s
        self.mean_base += weight * (num_base_tokens - self.mean_base)
        self.mean_drafts += weight * drafts_off
        self.mean_time_s += weight * time_off
        # Steps with as many drafts as the mean shrink both alike: the slope stays what it was.
        self.variance = (1.0 - weight) * (self.variance + weight * drafts_off * drafts_off)
        self.covariance = (1.0 - weight) * (self.covariance + weight * drafts_off * time_off)

    @property
    def price(self) -> float | None:
        """Time of a draft over time per base token; None while there is too little to tell."""
        if self.num_steps < NUM_STEPS_TO_KNOW or self.variance <= 1e-9:
            return None
        slope_s = self.covariance / self.variance
        base_time_s = self.mean_time_s - slope_s * self.mean_drafts
        if base_time_s <= 0.0:
            return None
        return max(slope_s * self.mean_base / base_time_s, LOWEST_PRICE)


class DraftPrice:
    """Price of a draft by the size of the step: 0 is free, 1 is what the step pays for each token that it must compute.

    Low where reading the weights takes most of a step, near 1 where arithmetic does.
    """

    def __init__(self) -> None:
        self._lines: dict[int, _Line] = {}

    def note(self, *, num_base_tokens: int, num_draft_tokens: int, step_time_s: float) -> None:
        if num_base_tokens > 0 and step_time_s > 0.0:
            line = self._lines.setdefault(_size_class(num_base_tokens), _Line())
            line.add(num_base_tokens, num_draft_tokens, step_time_s)

    def is_known(self, num_base_tokens: int) -> bool:
        """Whether steps of this very size have been measured, with drafts and without."""
        line = self._lines.get(_size_class(num_base_tokens))
        return line is not None and line.price is not None

    def at(self, num_base_tokens: int) -> float:
        """The price in a step of that size, or of the nearest size that is known."""
        wanted = _size_class(num_base_tokens)
        known = [(abs(size - wanted), size) for size, line in self._lines.items() if line.price is not None]
        price = self._lines[min(known)[1]].price if known else None
        return FIRST_GUESS_PRICE if price is None else price


def _size_class(num_tokens: int) -> int:
    if num_tokens <= NUM_EXACT_SIZES:
        return num_tokens
    return NUM_EXACT_SIZES + math.ceil(CLASSES_PER_DOUBLING * math.log2(num_tokens / NUM_EXACT_SIZES))
