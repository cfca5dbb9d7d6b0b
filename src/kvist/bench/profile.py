"""Measures an executor into a profile table: a grid of steps, in rounds that a busy machine hits alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import numpy as np

from kvist.bench.host_time import HostTime, measure_host
from kvist.bench.loaded_model import LoadedModel
from kvist.bench.nonnegative import nonnegative_least_squares
from kvist.bench.step_timer import Chunks, StepTimer
from kvist.core.clock import Clock
from kvist.core.errors import ConfigError
from kvist.core.step_plan import BlockMove, BlockMoveKind, StepPlan
from kvist.costmodel.profile_table import LAYOUT_VERSION, ProfileModel, ProfilePoint, ProfileTable
from kvist.costmodel.step_work import StepWork

DECODE_BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
DECODE_CONTEXTS = (64, 512, 2048)
PREFILL_CHUNKS = (16, 32, 64, 128, 256, 512, 1024)
PREFILL_CONTEXTS = (0, 512, 2048)
MIXED = ((64, 4), (128, 8), (256, 16), (240, 4))  # tokens of a chunk, and decodes that ride along
MIXED_CONTEXTS = (256, 1024)
PROBE = ProfilePoint(num_sequences=4, num_new_tokens=1, num_context_tokens=512, seconds=0.0)
FILL_TOKENS = 256
MIN_ROUNDS, MAX_ROUNDS = 3, 9
BAR_SHARE = 0.9
ONE_S = 1.0  # a step that takes longer leaves no time for the grid


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSize:
    """How much to measure. max_seconds: of the rounds over the grid."""

    max_seconds: float = 60.0
    max_kv_tokens: int = 32_768
    max_step_tokens: int = 1024
    thins_grid: bool = False


QUICK = ProfileSize(max_seconds=8.0, max_kv_tokens=8192, thins_grid=True)


def profile_model(
    loaded: LoadedModel,
    clock: Clock,
    size: ProfileSize,
    *,
    name: str,
    machine: Mapping[str, str],
    show: Callable[[str], None] = lambda _: None,
) -> ProfileTable:
    """Measure `loaded`, which serves nobody meanwhile. Raises ConfigError if its pool is too small for a grid."""
    fill_pool(loaded)
    timer = StepTimer(loaded.executor, clock, block_size=loaded.block_size)
    grid = step_grid(size, max_tokens=min(loaded.num_blocks * loaded.block_size, size.max_kv_tokens), loaded=loaded)
    probe_s(loaded, clock)
    first_s = probe_s(loaded, clock)
    rounds = _rounds(timer, grid, clock, size.max_seconds)
    times = [min(each) for each in zip(*rounds, strict=True)]
    last_s = probe_s(loaded, clock)
    show(f"{len(grid)} steps, {len(rounds)} rounds")
    points = [
        ProfilePoint(
            num_sequences=step.num_sequences,
            num_new_tokens=step.num_new_tokens,
            num_context_tokens=step.num_context_tokens,
            num_riders=step.num_riders,
            seconds=seconds,
        )
        for step, seconds in zip(grid, times, strict=True)
    ]
    host = measure_host(loaded, clock)
    show(f"host {1e3 * host.step_s:.2f} ms a step, {1e6 * host.sequence_s:.0f} us a sequence")
    drift = last_s / first_s - 1.0
    return fit_table(points, host, drift=drift, usual=usual_ratio(rounds), name=name, machine=machine)


def probe_s(loaded: LoadedModel, clock: Clock) -> float:
    """Shortest time of one small step, always the same: it tells how fast the machine is just now."""
    return StepTimer(loaded.executor, clock, block_size=loaded.block_size).best_s(_chunks(PROBE), repeats=9)


def step_grid(size: ProfileSize, *, max_tokens: int, loaded: LoadedModel) -> list[ProfilePoint]:
    """The steps to measure: decodes, chunks of prompts, both in one; those that the pool and the context allow."""
    points: list[ProfilePoint] = []

    def add(num_sequences: int, num_new: int, num_context: int, num_riders: int = 0) -> None:
        num_rows = num_sequences + num_riders
        block = loaded.block_size
        length = -(-(num_context + num_new) // block) * block
        step_tokens = num_sequences * num_new + num_riders
        fits = num_rows * length <= max_tokens and length <= loaded.max_model_len
        if fits and step_tokens <= size.max_step_tokens and num_rows <= loaded.config.scheduler.max_num_seqs:
            points.append(
                ProfilePoint(
                    num_sequences=num_sequences,
                    num_new_tokens=num_new,
                    num_context_tokens=num_context,
                    num_riders=num_riders,
                    seconds=0.0,
                )
            )

    every = 2 if size.thins_grid else 1
    for context in DECODE_CONTEXTS:
        for batch in DECODE_BATCHES[::every]:
            add(batch, 1, context)
    for context in PREFILL_CONTEXTS:
        for chunk in PREFILL_CHUNKS[::every]:
            add(1, chunk, context)
    add(4, 32, 0)
    add(4, 64, 0)
    for context in MIXED_CONTEXTS:
        for chunk, riders in MIXED[::every]:
            add(1, chunk, context, riders)
    if len(points) < len(DECODE_BATCHES) // 2:
        raise ConfigError(f"a pool of {max_tokens} tokens is too small to profile; raise --kv-cache-bytes")
    return points


def fit_table(
    points: Sequence[ProfilePoint],
    host: HostTime,
    *,
    drift: float,
    name: str,
    machine: Mapping[str, str],
    usual: float = 1.0,
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
        usual=usual,
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


def _rounds(timer: StepTimer, grid: Sequence[ProfilePoint], clock: Clock, max_seconds: float) -> list[list[float]]:
    """The time of each step, in rounds through the whole grid."""
    rounds: list[list[float]] = []
    begun_s = clock.now_s()
    while len(rounds) < MAX_ROUNDS:
        rounds.append([timer.best_s(_chunks(step), repeats=1) for step in grid])
        used_s = clock.now_s() - begun_s
        if len(rounds) >= MIN_ROUNDS and used_s * (len(rounds) + 1) / len(rounds) > max_seconds:
            break
    return rounds


def usual_ratio(rounds: Sequence[Sequence[float]]) -> float:
    """How many times its shortest time a step takes as a rule: the median over all steps of all rounds.

    What else runs only ever adds time, so the shortest times tell steps apart best; but no load meets only those.
    """
    shortest = [min(each) for each in zip(*rounds, strict=True)]
    ratios = [seconds / least for one in rounds for seconds, least in zip(one, shortest, strict=True)]
    return float(statistics.median(ratios))


def _chunks(point: ProfilePoint) -> Chunks:
    context = point.num_context_tokens
    return [(point.num_new_tokens, context)] * point.num_sequences + [(1, context)] * point.num_riders


def fill_pool(loaded: LoadedModel) -> None:
    """Write keys and values to all blocks: memory that nobody wrote to reads faster than any other."""
    size = loaded.block_size
    timer_plan = StepTimer(loaded.executor, _NoClock(), block_size=size)
    written = min(FILL_TOKENS, loaded.max_num_batched_tokens, loaded.max_model_len, loaded.num_blocks * size)
    timer_plan.best_s([(written, 0)], repeats=1)
    sources = max(written // size, 1)
    moves = [BlockMove(BlockMoveKind.COPY, b % sources, b, size) for b in range(sources, loaded.num_blocks)]
    plan = StepPlan(
        step_id=-1,
        request_ids=[],
        start_positions=[],
        num_scheduled_tokens=[],
        samples=[],
        num_total_tokens=0,
        block_moves=moves,
    )
    loaded.executor.finish_step(loaded.executor.begin_step(plan))


class _NoClock(Clock):
    """For steps whose time is not of interest."""

    def now_s(self) -> float:
        return 0.0
