"""The load that a serving row was measured under, as far as its columns tell."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvist.bench.calibration.points import Point

DEFAULT_STEP_TOKENS = 8192  # the token budget of engines since 2025, where a row does not name it
RANDOM_LENGTH_SHARE = 0.9  # InferenceMAX draws lengths evenly from 0.8 to 1 of the nominal ones
LENGTH_SPREAD = 0.1 / RANDOM_LENGTH_SHARE  # elsewhere models stop early now and then: clients fall out of step
CHAT_PROMPT, CHAT_OUTPUT = 215, 215  # means of the 200 conversations of ShareGPT that vLLM's own suite takes
CHAT_LONGEST = 1000  # of its prompts and of its answers: the longest answer ends last
NUM_ROUNDS = 10  # requests per client there
BENCHMARK_ID = re.compile(r"\bid=20\d\d_")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadShape:
    """Lengths in tokens. Either num_clients (closed loop) or rate_per_s (open).

    uncached_len: tokens of a prompt that no earlier request has left in the cache. length_spread: lengths are drawn
    evenly from so large a share about their means; with `longest`, exponentially up to it instead.
    """

    prompt_len: int
    uncached_len: int
    output_len: int
    max_step_tokens: int
    num_clients: int | None
    rate_per_s: float | None
    num_rounds: int = NUM_ROUNDS
    num_prefixes: int = 1
    length_spread: float = LENGTH_SPREAD
    longest: int | None = None


def load_shape(point: Point) -> LoadShape | None:
    """The load of a closed or open serving row; None for other rows, or if lengths are absent."""
    if point.metric == "offline_req_s_sharegpt200":
        return _all_at_once(point.batch or 200)
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
        num_prefixes=max(1, point.num_prefixes or 1),
        length_spread=LENGTH_SPREAD,
    )


def _all_at_once(num_requests: int) -> LoadShape:
    """Requests of a chat, all at the start; few are long."""
    return LoadShape(
        prompt_len=CHAT_PROMPT,
        uncached_len=CHAT_PROMPT,
        output_len=CHAT_OUTPUT,
        max_step_tokens=DEFAULT_STEP_TOKENS,
        num_clients=num_requests,
        rate_per_s=None,
        num_rounds=1,
        longest=CHAT_LONGEST,
    )
