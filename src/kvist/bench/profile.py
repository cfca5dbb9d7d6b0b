"""Measures an executor into a profile table: the times of a grid of steps, and the coefficients that explain them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from kvist.bench.host_time import HostTime, measure_host
from kvist.bench.loaded_model import LoadedModel
from kvist.bench.nonnegative import nonnegative_least_squares
from kvist.bench.profile_grid import ProfileGrid, ProfileSize, fill_pool, probe_s
from kvist.core.clock import Clock
from kvist.costmodel.profile_table import LAYOUT_VERSION, ProfiledEngine, ProfileModel, ProfilePoint, ProfileTable
from kvist.costmodel.step_work import StepWork

BAR_SHARE = 0.9
LONGEST_SHARE = 2.0  # of its median: a step that was held up for longer says nothing of the step


def profile_model(
    loaded: LoadedModel,
    clock: Clock,
    size: ProfileSize,
    *,
    name: str,
    machine: Mapping[str, str],
    engine: ProfiledEngine | None = None,
    show: Callable[[str], None] = lambda _: None,
) -> ProfileTable:
    """Measure `loaded`, which serves nobody meanwhile. Raises ConfigError if its pool is too small for a grid."""
    fill_pool(loaded)
    grid = ProfileGrid(loaded, clock, size)
    probe_s(loaded, clock)  # a first step is like no other
    rounds = grid.time_rounds()
    show(f"{len(grid.steps)} steps, {len(rounds)} rounds")
    host = measure_host(loaded, clock)
    show(f"host {1e3 * host.step_s:.2f} ms a step, {1e6 * host.sequence_s:.0f} us a sequence")
    table = table_of_rounds(grid.steps, rounds, host, drift=drift_of(rounds), name=name, machine=machine)
    return msgspec.structs.replace(table, engine=engine)


def table_of_rounds(
    steps: Sequence[ProfilePoint],
    rounds: Sequence[Sequence[float]],
    host: HostTime,
    *,
    drift: float,
    name: str,
    machine: Mapping[str, str],
) -> ProfileTable:
    """The profile of steps that took these times, round by round."""
    points = [
        msgspec.structs.replace(step, seconds=usual_s(times))
        for step, times in zip(steps, zip(*rounds, strict=True), strict=True)
    ]
    return fit_table(points, host, drift=drift, name=name, machine=machine)


def usual_s(times: Sequence[float]) -> float:
    """What a step takes as a rule: the mean of its times, those beyond LONGEST_SHARE of their median cut to that.

    Not the shortest: no load meets only lucky steps, and steps that multiply much vary more than those that read much.
    """
    longest = LONGEST_SHARE * statistics.median(times)
    return statistics.fmean(min(seconds, longest) for seconds in times)


def round_levels(rounds: Sequence[Sequence[float]]) -> list[float]:
    """How long each round's steps took, as multiples of what they take as a rule: the drift of the machine."""
    usual = [usual_s(times) for times in zip(*rounds, strict=True)]
    return [statistics.fmean(seconds / mean for seconds, mean in zip(one, usual, strict=True)) for one in rounds]


def drift_of(rounds: Sequence[Sequence[float]]) -> float:
    """How much longer the slowest round took than the fastest one, as a share."""
    levels = round_levels(rounds)
    return max(levels) / min(levels) - 1.0


def fit_table(
    points: Sequence[ProfilePoint],
    host: HostTime,
    *,
    drift: float,
    name: str,
    machine: Mapping[str, str],
) -> ProfileTable:
    """The coefficients that explain the points, none below 0, by relative least squares."""
    works = [point.work for point in points]
    seconds = np.asarray([point.seconds for point in points])
    knots = sorted({work.num_tokens for work in works if work.num_tokens == 1 or work.num_tokens % 4 == 0})
    columns = np.asarray([_columns(work, knots) for work in works])
    found = nonnegative_least_squares(columns / seconds[:, None], np.ones(len(works)))
    rises, (sampled_s, decode_key_s, prefill_key_s, prefill_pair_s) = found[: len(knots)], found[len(knots) :].tolist()
    # No step takes no time, so that a model is never at 0.
    knot_s = np.maximum(np.cumsum(rises), 1e-7).tolist()
    table = ProfileTable(
        layout_version=LAYOUT_VERSION,
        model=name,
        machine=dict(machine),
        points=list(points),
        knots=knots,
        knot_s=knot_s,
        sampled_s=sampled_s,
        decode_key_s=decode_key_s,
        prefill_key_s=prefill_key_s,
        prefill_pair_s=prefill_pair_s,
        host_s=host.step_s,
        host_sequence_s=host.sequence_s,
        host_token_s=host.token_s,
        error=0.0,
        drift=drift,
    )
    model = ProfileModel(table)
    errors = [abs(model.executor_s(work) / point.seconds - 1.0) for work, point in zip(works, points, strict=True)]
    error = statistics.quantiles(errors, n=100, method="inclusive")[round(100 * BAR_SHARE) - 1]
    return msgspec.structs.replace(table, error=error)


def _columns(work: StepWork, knots: Sequence[int]) -> list[float]:
    """How much of each rise between knots a step contains, then its other counts."""
    parts = [1.0]
    for left, right in pairwise(knots):
        parts.append(min(1.0, max(0.0, (work.num_tokens - left) / (right - left))))
    return [
        *parts,
        work.num_sampled,
        work.decode_context_tokens,
        work.prefill_context_tokens,
        work.prefill_pairs,
    ]
