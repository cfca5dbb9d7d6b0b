"""How many tokens to draft for each request of a step: as many as make it give more tokens per second.

The idea of goodput as the measure is that of SmartSpec (Liu et al., "Optimizing Speculative Decoding for Serving Large
Language Models Using Goodput", 2024).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

MARGIN = 1.1  # a draft must be worth this times what it costs: chances and prices are estimates
MARGIN_FOR_WAITING = 0.5  # more, by the share of a step's tokens that get no drafts and wait for those of others
NUM_ROUNDS = 3
LARGEST_CHANCE = 0.98


def choose_lengths(
    chances: Sequence[float],
    limits: Sequence[int],
    *,
    price: float,
    num_base_tokens: int,
    max_tokens: int,
    fixed_price: float = 0.0,
) -> list[int]:
    """Return the number of drafts for each request, `max_tokens` in all at most.

    chances: that a request's next draft is accepted, given that those before it were. price, fixed_price: of each draft
    and of having any, see `draft_price.Price`.

    The j-th draft of a request adds chance**j tokens. It pays if that is more than its time would give otherwise:
    `price` tokens at the rate without drafts, more as the drafts themselves raise the rate. All of them together must
    earn the fixed price besides, and more so the fewer requests they are of: who gains is not who waits for the longer
    step. Else there are none.
    """
    worth = 1.0  # tokens per time, against the step without drafts
    lengths = [0] * len(chances)
    for _ in range(NUM_ROUNDS):
        threshold = MARGIN * price * worth
        lengths = [_length(chance, limit, threshold) for chance, limit in zip(chances, limits, strict=True)]
        gained = sum(expected_tokens(chance, length) for chance, length in zip(chances, lengths, strict=True))
        worth = max((num_base_tokens + gained) / (num_base_tokens + price * sum(lengths)), 1.0)
    lengths = _fit(chances, lengths, max_tokens)
    gained = sum(expected_tokens(chance, length) for chance, length in zip(chances, lengths, strict=True))
    waiting_share = 1.0 - sum(length > 0 for length in lengths) / max(num_base_tokens, len(lengths))
    margin = MARGIN + MARGIN_FOR_WAITING * waiting_share
    return lengths if gained >= margin * (fixed_price + price * sum(lengths)) else [0] * len(lengths)


def expected_tokens(chance: float, length: int) -> float:
    """Drafts accepted of `length`, on average."""
    return sum(chance**j for j in range(1, length + 1))


def _length(chance: float, limit: int, threshold: float) -> int:
    if threshold <= 0.0:
        return limit
    chance = min(chance, LARGEST_CHANCE)
    if chance <= threshold or limit <= 0:
        return 0
    return min(limit, int(math.log(threshold) / math.log(chance)))


def _fit(chances: Sequence[float], lengths: list[int], max_tokens: int) -> list[int]:
    """Take away the drafts with the smallest chance until all fit."""
    num_excess = sum(lengths) - max_tokens
    if num_excess <= 0:
        return lengths
    drafts = sorted(
        (-(chance**j), i)
        for i, (chance, length) in enumerate(zip(chances, lengths, strict=True))
        for j in range(1, length + 1)
    )
    fitted = [0] * len(lengths)
    for _, i in drafts[: max(max_tokens, 0)]:
        fitted[i] += 1
    return fitted
