"""Chooses a step's token budget from measured step times. Measuring is the runtime's job."""

from __future__ import annotations

from collections.abc import Sequence

STEP_TIME_TARGET_S = 0.1
BUDGET_MULTIPLE = 16


def choose_token_budget(points: Sequence[tuple[int, float]], *, target_s: float = STEP_TIME_TARGET_S) -> int:
    """Return the largest multiple of 16 whose step takes at most `target_s`, from measured (tokens, seconds).

    Between two points the time is taken to grow linearly; beyond the last it is not guessed. At least 16, however
    slow the machine is. Raises ValueError without points.
    """
    if not points:
        raise ValueError("no measured steps to choose a token budget from")
    budget = 0.0
    last_tokens, last_s = 0, 0.0
    for num_tokens, step_time_s in _without_noise(points):
        if step_time_s > target_s:
            share = (target_s - last_s) / (step_time_s - last_s)
            budget = last_tokens + share * (num_tokens - last_tokens)
            break
        budget = num_tokens
        last_tokens, last_s = num_tokens, step_time_s
    return max(int(budget) // BUDGET_MULTIPLE * BUDGET_MULTIPLE, BUDGET_MULTIPLE)


def _without_noise(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the points by size, each no slower than any larger one: what else a machine does only ever adds time."""
    fastest = float("inf")
    cleaned: list[tuple[int, float]] = []
    for num_tokens, measured_s in sorted(points, reverse=True):
        fastest = min(fastest, measured_s)
        cleaned.append((num_tokens, fastest))
    return cleaned[::-1]
