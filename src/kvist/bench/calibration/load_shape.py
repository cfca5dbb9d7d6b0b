"""The load that a serving row was measured under, as far as its columns tell."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvist.bench.calibration.points import Point

DEFAULT_STEP_TOKENS = 8192  # the token budget of engines since 2025, where a row does not name it
RANDOM_LENGTH_SHARE = 0.9  # InferenceMAX draws lengths evenly from 0.8 to 1 of the nominal ones
NUM_ROUNDS = 10  # requests per client there
BENCHMARK_ID = re.compile(r"\bid=20\d\d_")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadShape:
    """Lengths in tokens. Either num_clients (closed loop) or rate_per_s (open).

    uncached_len: tokens of a prompt that no earlier request has left in the cache.
    """

    prompt_len: int
    uncached_len: int
    output_len: int
    max_step_tokens: int
    num_clients: int | None
    rate_per_s: float | None
    num_rounds: int = NUM_ROUNDS


def load_shape(point: Point) -> LoadShape | None:
    """The load of a closed or open serving row; None for other rows, or if lengths are absent."""
    if point.kind not in ("e2e-serving", "e2e-serving-open") or not point.input_len:
        return None
    output_len = point.output_len or point.context_len
    if not output_len:
        return None
    is_open = point.kind == "e2e-serving-open"
    if (is_open and not point.rate_per_s) or (not is_open and not point.batch):
        return None
    share = RANDOM_LENGTH_SHARE if BENCHMARK_ID.search(point.note) else 1.0
    prompt_len = max(1, round(share * point.input_len))
    cached = min(point.prefix_len or 0, prompt_len - 1)
    return LoadShape(
        prompt_len=prompt_len,
        uncached_len=prompt_len - cached,
        output_len=max(1, round(share * output_len)),
        max_step_tokens=point.max_num_batched_tokens or DEFAULT_STEP_TOKENS,
        num_clients=None if is_open else point.batch,
        rate_per_s=point.rate_per_s if is_open else None,
    )
