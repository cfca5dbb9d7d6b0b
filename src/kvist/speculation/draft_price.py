"""What drafted tokens cost, beside the tokens that a step computes anyway, learned from step times."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

LOWEST_PRICE = 0.02
NUM_EXACT_SIZES = 16  # steps of up to so many tokens are told apart, larger ones by about a fifth
CLASSES_PER_DOUBLING = 4
NUM_STEPS_TO_KNOW = 3  # of each, with drafts and without
NEWEST_WEIGHT = 0.05
LARGEST_WEIGHT = 0.25  # of a step of a kind that there was none of for long: what is known of it is old
LONGEST_STEP_RATIO = 3.0  # a step that took longer than this times the mean was held up by something else


class Price(NamedTuple):
    """In tokens that the step would compute in the same time: `fixed` for having any drafts, and `per_draft` for each.

    A step with drafts computes chunks instead of single tokens and may need other kernels: that is what `fixed` is.
    """

    fixed: float
    per_draft: float

    def of(self, num_drafts: int) -> float:
        return self.fixed + self.per_draft * num_drafts if num_drafts else 0.0


FIRST_GUESS_PRICE = Price(0.0, 0.3)


@dataclass(slots=True)
class _Line:
    """Step time over number of drafts, fitted by least squares to the latest steps of one kind."""

    num_steps: int = 0
    mean_drafts: float = 0.0
    mean_time_s: float = 0.0
    variance: float = 0.0
    covariance: float = 0.0

    def add(self, num_draft_tokens: int, step_time_s: float, *, num_others: int) -> None:
        """num_others: steps of the other kind since the last of this one."""
        self.num_steps += 1
        weight = max(1.0 / self.num_steps, min((1 + num_others) * NEWEST_WEIGHT, LARGEST_WEIGHT))
        if self.num_steps > NUM_STEPS_TO_KNOW:
            step_time_s = min(step_time_s, LONGEST_STEP_RATIO * self.mean_time_s)
        drafts_off, time_off = num_draft_tokens - self.mean_drafts, step_time_s - self.mean_time_s
        self.mean_drafts += weight * drafts_off
        self.mean_time_s += weight * time_off
        # Steps with as many drafts as the mean shrink both alike: the slope stays what it was.
        self.variance = (1.0 - weight) * (self.variance + weight * drafts_off * drafts_off)
        self.covariance = (1.0 - weight) * (self.covariance + weight * drafts_off * time_off)

    @property
    def slope_s(self) -> float | None:
        return self.covariance / self.variance if self.variance > 1e-9 else None


@dataclass(slots=True)
class _Size:
    """Steps of about one size: without drafts, and with."""

    mean_base: float = 0.0
    num_steps: int = 0
    plain: _Line = field(default_factory=_Line)
    drafting: _Line = field(default_factory=_Line)
    num_alike: int = 0  # steps of the latest one's kind in a row
    was_drafting: bool = False

    def add(self, num_base_tokens: int, num_draft_tokens: int, step_time_s: float) -> None:
        self.num_steps += 1
        self.mean_base += max(1.0 / self.num_steps, NEWEST_WEIGHT) * (num_base_tokens - self.mean_base)
        is_drafting = num_draft_tokens > 0
        num_others = 0 if is_drafting == self.was_drafting else self.num_alike
        self.num_alike = self.num_alike + 1 if is_drafting == self.was_drafting else 1
        self.was_drafting = is_drafting
        (self.drafting if is_drafting else self.plain).add(num_draft_tokens, step_time_s, num_others=num_others)

    @property
    def price(self) -> Price | None:
        """None while there is too little to tell."""
        plain, drafting = self.plain, self.drafting
        if min(plain.num_steps, drafting.num_steps) < NUM_STEPS_TO_KNOW:
            return None
        token_s = plain.mean_time_s / self.mean_base
        extra_s = max(drafting.mean_time_s - plain.mean_time_s, 0.0)
        # No draft costs more than all of them together do, and none is for nothing.
        even_s = extra_s / drafting.mean_drafts
        slope_s = even_s if drafting.slope_s is None else min(max(drafting.slope_s, 0.0), even_s)
        fixed_s = extra_s - slope_s * drafting.mean_drafts
        return Price(fixed_s / token_s, max(slope_s / token_s, LOWEST_PRICE))


class DraftPrice:
    """Price of drafts by the size of the step. `per_draft`: 0 is free, 1 is what the step pays for each token that it
    must compute: low where reading the weights takes most of a step, near 1 where arithmetic does.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}

    def note(self, *, num_base_tokens: int, num_draft_tokens: int, step_time_s: float) -> None:
        if num_base_tokens > 0 and step_time_s > 0.0:
            size = self._sizes.setdefault(_size_class(num_base_tokens), _Size())
            size.add(num_base_tokens, num_draft_tokens, step_time_s)

    def is_known(self, num_base_tokens: int) -> bool:
        """Whether steps of this very size have been measured, with drafts and without."""
        size = self._sizes.get(_size_class(num_base_tokens))
        return size is not None and size.price is not None

    def at(self, num_base_tokens: int) -> Price:
        """The price in a step of that size, or of the nearest size that is known."""
        wanted = _size_class(num_base_tokens)
        known = [(abs(number - wanted), number) for number, size in self._sizes.items() if size.price is not None]
        price = self._sizes[min(known)[1]].price if known else None
        return FIRST_GUESS_PRICE if price is None else price


def _size_class(num_tokens: int) -> int:
    if num_tokens <= NUM_EXACT_SIZES:
        return num_tokens
    return NUM_EXACT_SIZES + math.ceil(CLASSES_PER_DOUBLING * math.log2(num_tokens / NUM_EXACT_SIZES))
