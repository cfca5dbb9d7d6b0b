"""Step times of one host, measured by `kvist profile`, and a model that interpolates them. Monotone in each count."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal

import msgspec

from kvist.core.errors import ConfigError
from kvist.core.model_spec import ModelSpec
from kvist.costmodel.error_bar import ErrorBar
from kvist.costmodel.step_work import StepWork

LAYOUT_VERSION = 1


class ProfilePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One measured step: `num_sequences` chunks of `num_new_tokens` after `num_context_tokens` each.

    num_riders: sequences that decode one token in the same step, at the same context. seconds: of the executor.
    """

    num_sequences: int
    num_new_tokens: int
    num_context_tokens: int
    seconds: float
    num_riders: int = 0

    @property
    def work(self) -> StepWork:
        chunks = [(self.num_new_tokens, self.num_context_tokens)] * self.num_sequences
        chunks += [(1, self.num_context_tokens)] * self.num_riders
        return StepWork.of(chunks, num_sampled=len(chunks))


class ProfiledEngine(msgspec.Struct, frozen=True, kw_only=True):
    """What was profiled besides its times: all that a plan for the same host needs to know of its engine.

    flags: of `kvist serve`, for the same kernels, threads and number format of K and V.
    free_memory_bytes: that the host could give before the model was loaded.
    """

    model_spec: ModelSpec
    executor: Literal["native", "reference"]
    flags: list[str]
    kv_cache_dtype: str
    kv_bytes_per_token: int
    block_size: int
    free_memory_bytes: int


class ProfileTable(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, and the coefficients that explain it.

    A step takes f(num_tokens), linear between `knots` with the times `knot_s`; `sampled_s` for each sampled row,
    `decode_key_s` and `prefill_key_s` for each key that single tokens and chunks read, and `prefill_pair_s` for each
    pair of a query and a key. The host adds `host_s`, `host_sequence_s` a sequence, `host_token_s` a prompt token.
    error: share that 9 of 10 steps were off by. drift: how far the machine's speed went meanwhile, as a share: in the
    profile of a host the slowest round over the fastest, minus 1.
    engine: None where it is not known, as in profiles of before it was noted: no plans are made from those.
    """

    layout_version: int
    model: str
    machine: dict[str, str]
    points: list[ProfilePoint]
    knots: list[int]
    knot_s: list[float]
    sampled_s: float
    decode_key_s: float
    prefill_key_s: float
    prefill_pair_s: float
    host_s: float
    host_sequence_s: float
    host_token_s: float
    error: float
    drift: float
    engine: ProfiledEngine | None = None

    @property
    def max_step_tokens(self) -> int:
        """Of the largest step that was measured; larger ones are extrapolated."""
        return self.knots[-1]

    @property
    def max_sequences(self) -> int:
        """Of the step with the most requests that was measured; 0 if the points are not known."""
        return max((point.num_sequences + point.num_riders for point in self.points), default=0)


class ProfileModel:
    """A StepTimeModel of the host that a table was measured on."""

    def __init__(self, table: ProfileTable) -> None:
        self.table = table

    def predict_s(self, work: StepWork) -> float:
        table = self.table
        prompt_tokens = max(0, work.num_tokens - work.num_sequences)
        host_s = table.host_s + table.host_sequence_s * work.num_sequences + table.host_token_s * prompt_tokens
        return host_s + self.executor_s(work)

    def executor_s(self, work: StepWork) -> float:
        """Without the host's part: what the table's points measured."""
        table = self.table
        return (
            interpolate(table.knots, table.knot_s, work.num_tokens)
            + table.sampled_s * work.num_sampled
            + table.decode_key_s * work.decode_context_tokens
            + table.prefill_key_s * work.prefill_context_tokens
            + table.prefill_pair_s * work.prefill_pairs
        )

    def margin_s(self, work: StepWork) -> float:
        return self.table.error * self.predict_s(work)

    @property
    def error_bar(self) -> ErrorBar:
        """Of a load's steps: no surer than the same steps were while the profile was made, which is their mean."""
        share = max(self.table.error, abs(self.table.drift) / 2.0)
        reason = f"a profile of {len(self.table.points)} steps on this host"
        return ErrorBar(decode=share, prefill=share, reason=reason)


def interpolate(knots: Sequence[int], values: Sequence[float], at: float) -> float:
    """Linear between the knots, and beyond the last as between the last two. At or below the first: its value."""
    if at <= knots[0] or len(knots) == 1:
        return values[0]
    right = min(bisect_right(knots, at), len(knots) - 1)
    left = right - 1
    slope = (values[right] - values[left]) / (knots[right] - knots[left])
    return values[left] + slope * (at - knots[left])


def parse_profile(data: bytes, name: str) -> ProfileTable:
    """Read a profile file's bytes. Raises ConfigError if they are none, or of another layout."""
    try:
        table = msgspec.json.decode(data, type=ProfileTable)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{name} is not a profile ({error}); `kvist profile` writes one") from error
    is_rising = table.knots == sorted(set(table.knots)) and table.knot_s == sorted(table.knot_s)
    if table.layout_version != LAYOUT_VERSION or not table.knots or len(table.knots) != len(table.knot_s):
        raise ConfigError(f"{name} has layout {table.layout_version}; this kvist reads {LAYOUT_VERSION}")
    if not is_rising or table.knot_s[0] <= 0.0:
        raise ConfigError(f"{name}: its times must be positive and rise with the number of tokens")
    return table
