"""The steps that a profile is made of, timed on an executor in rounds through all of them."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.bench.loaded_model import LoadedModel
from kvist.bench.step_timer import Chunks, StepTimer
from kvist.core.clock import Clock
from kvist.core.errors import ConfigError
from kvist.core.step_plan import BlockMove, BlockMoveKind
from kvist.costmodel.profile_table import ProfilePoint
from kvist.engine.lone_step import run_idle_step

DECODE_BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
DECODE_CONTEXTS = (64, 512, 2048)
PREFILL_CHUNKS = (16, 32, 64, 128, 256, 512, 1024)
PREFILL_CONTEXTS = (0, 512, 2048)
MIXED = ((64, 4), (128, 8), (256, 16), (240, 4))  # tokens of a chunk, and decodes that ride along
MIXED_CONTEXTS = (256, 1024)
PROBE = ProfilePoint(num_sequences=4, num_new_tokens=1, num_context_tokens=512, seconds=0.0)
FILL_TOKENS = 256
MIN_ROUNDS, MAX_ROUNDS = 3, 9


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSize:
    """How much to measure. max_seconds: of the rounds over the grid. first_block: those before it are not touched."""

    max_seconds: float = 60.0
    first_block: int = 0
    max_kv_tokens: int = 32_768
    max_step_tokens: int = 1024
    thins_grid: bool = False


QUICK = ProfileSize(max_seconds=8.0, max_kv_tokens=8192, thins_grid=True)


class ProfileGrid:
    """Times its steps on `loaded`, between the steps of others. Raises ConfigError if its pool is too small."""

    def __init__(self, loaded: LoadedModel, clock: Clock, size: ProfileSize) -> None:
        self._clock = clock
        self._max_seconds = size.max_seconds
        self._timer = StepTimer(loaded.executor, clock, block_size=loaded.block_size, first_block=size.first_block)
        max_tokens = min((loaded.num_blocks - size.first_block) * loaded.block_size, size.max_kv_tokens)
        self.steps = step_grid(size, max_tokens=max_tokens, loaded=loaded)

    def time_round(self) -> list[float]:
        """Seconds of each step, once."""
        return [self.time_step(place) for place in range(len(self.steps))]

    def time_step(self, place: int) -> float:
        """Seconds of one step of the grid."""
        return self._timer.best_s(_chunks(self.steps[place]), repeats=1)

    def time_rounds(self) -> list[list[float]]:
        """As many rounds as there is time for, within bounds: what else the machine does then hits all steps alike."""
        rounds: list[list[float]] = []
        begun_s = self._clock.now_s()
        while len(rounds) < MAX_ROUNDS:
            rounds.append(self.time_round())
            used_s = self._clock.now_s() - begun_s
            if len(rounds) >= MIN_ROUNDS and used_s * (len(rounds) + 1) / len(rounds) > self._max_seconds:
                break
        return rounds


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
    run_idle_step(loaded.executor, block_moves=moves)


class _NoClock(Clock):
    """For steps whose time is not of interest."""

    def now_s(self) -> float:
        return 0.0
