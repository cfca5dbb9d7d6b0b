"""Measures how long prefill steps of growing size take on this machine, for the choice of the token budget.

A steady result is kept on disk: a second start with the same model, executor, threads and machine times one small step
only, to see whether the machine is now faster than it was.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kvist.core.clock import Clock
from kvist.core.errors import CheckpointError
from kvist.core.request import RequestId
from kvist.core.sampling_params import SamplingParams
from kvist.engine.executor import Executor
from kvist.engine.lone_step import lone_step, run_idle_step
from kvist.weights.atomic_file import write_atomically

STEP_SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048)
LONGEST_STEP_S = 0.2  # twice the aim of the budget: larger steps are not of interest
MAX_TOTAL_S = 2.5
STEADY_RATIO = 1.5
AGREEING_RATIO = 1.25
MAX_TRIALS = 4  # of a size, until the two shortest agree: whatever else the machine was doing only ever adds time
MORE_THAN_ANY_CONTEXT = 1 << 62
LAYOUT_VERSION = 2  # of the kept file

_REQUEST_ID = RequestId("step-timing")


class StepPoint(msgspec.Struct, frozen=True):
    """One measured step."""

    num_tokens: int
    step_time_s: float


@dataclass(frozen=True, slots=True)
class StepTiming:
    """What was measured. is_steady: of each size two steps took about as long: what the machine can do."""

    points: list[StepPoint]
    is_steady: bool


class _KeptTiming(msgspec.Struct, frozen=True):
    layout_version: int
    points: list[StepPoint]


def timed_steps(
    executor: Executor, clock: Clock, timing_file: Path, *, block_size: int, max_tokens: int
) -> list[StepPoint]:
    """The points of `timing_file` if they still hold, else new ones; these are kept there if they are steady.

    As `measure_steps`, for an executor that has not served yet.
    """
    kept = load_timing(timing_file) or []
    is_enough = kept and (_next_size(kept) > max_tokens or kept[-1].step_time_s > LONGEST_STEP_S)
    if is_enough and kept[0].num_tokens <= max_tokens and not _is_faster_now(executor, clock, kept[0], block_size):
        return [point for point in kept if point.num_tokens <= max_tokens]
    timing = measure_steps(executor, clock, block_size=block_size, max_tokens=max_tokens)
    # The shorter of then and now: whatever else the machine was doing only ever adds time.
    times_s = {point.num_tokens: point.step_time_s for point in timing.points}
    for point in kept:
        times_s[point.num_tokens] = min(point.step_time_s, times_s.get(point.num_tokens, point.step_time_s))
    points = [StepPoint(num_tokens, times_s[num_tokens]) for num_tokens in sorted(times_s)]
    if timing.is_steady:  # what was measured beside other work must not decide all later starts
        keep_timing(timing_file, points)
    return [point for point in points if point.num_tokens <= max_tokens]


def _next_size(points: Sequence[StepPoint]) -> int:
    """The size that would be measured after these; what a shorter context left out is one."""
    return next((size for size in STEP_SIZES if size > points[-1].num_tokens), MORE_THAN_ANY_CONTEXT)


def _is_faster_now(executor: Executor, clock: Clock, kept: StepPoint, block_size: int) -> bool:
    """Whether a kept point was measured while something else held the machine back all the time, steadily."""
    _time_step(executor, clock, 1, block_size)
    times_s = [_time_step(executor, clock, kept.num_tokens, block_size) for _ in range(2)]
    return min(times_s) * STEADY_RATIO < kept.step_time_s


def measure_steps(executor: Executor, clock: Clock, *, block_size: int, max_tokens: int) -> StepTiming:
    """Time one chunk of each size, at most `max_tokens`, until steps or the sum of them get long.

    Writes to the KV blocks and leaves no request behind: for an executor that has not served yet.
    """
    points: list[StepPoint] = []
    is_steady = True
    sizes = [size for size in STEP_SIZES if size <= max_tokens] or [max_tokens]
    begun_s = clock.now_s()
    _time_step(executor, clock, 1, block_size)  # the first step also pays for touching the weights
    for size in sizes:
        times_s = [_time_step(executor, clock, size, block_size)]
        while len(times_s) < MAX_TRIALS and not _agree(times_s) and clock.now_s() - begun_s < MAX_TOTAL_S / 2:
            times_s.append(_time_step(executor, clock, size, block_size))
        is_steady &= len(times_s) == 1 or _agree(times_s)
        points.append(StepPoint(size, min(times_s)))
        if min(times_s) > LONGEST_STEP_S or clock.now_s() - begun_s > MAX_TOTAL_S:
            break
    return StepTiming(points, is_steady)


def _agree(times_s: Sequence[float]) -> bool:
    """Whether the two shortest are about as long."""
    shortest = sorted(times_s)[:2]
    return len(shortest) > 1 and shortest[1] <= AGREEING_RATIO * shortest[0]


def timing_key(parts: Sequence[str]) -> str:
    """Name of the file that keeps the timing of what `parts` describe, on this machine."""
    machine = (platform.machine(), platform.node(), str(os.cpu_count()), *_cpu_model())
    return hashlib.sha256("\0".join((*machine, *parts)).encode()).hexdigest()[:32] + ".json"


def load_timing(path: Path) -> list[StepPoint] | None:
    """Return the kept points; None if there are none or the file is not what it should be."""
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_KeptTiming)
    except (OSError, msgspec.MsgspecError):
        return None
    sizes = [point.num_tokens for point in kept.points]
    is_sound = sizes == sorted(set(sizes)) and all(0 < size <= STEP_SIZES[-1] for size in sizes)
    is_sound &= all(0.0 < point.step_time_s < math.inf for point in kept.points)
    return kept.points if kept.layout_version == LAYOUT_VERSION and kept.points and is_sound else None


def keep_timing(path: Path, points: Sequence[StepPoint]) -> None:
    """Write the points. A cache that cannot be written only costs time at the next start, so that is no error."""
    with suppress(CheckpointError), write_atomically(path) as file:
        file.write(msgspec.json.encode(_KeptTiming(LAYOUT_VERSION, list(points))))


def _time_step(executor: Executor, clock: Clock, num_tokens: int, block_size: int) -> float:
    """Prefill `num_tokens` tokens of one made-up prompt and forget them again."""
    sampling = SamplingParams(temperature=0.0, max_tokens=1)
    plan = lone_step(_REQUEST_ID, [0] * num_tokens, sampling, block_size=block_size, samples=True)
    begun_s = clock.now_s()
    executor.finish_step(executor.begin_step(plan))
    step_time_s = clock.now_s() - begun_s
    run_idle_step(executor, dropped_request_ids=[_REQUEST_ID])
    return step_time_s


def _cpu_model() -> tuple[str, ...]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    return tuple(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
