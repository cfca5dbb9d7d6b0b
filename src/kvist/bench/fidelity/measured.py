"""The measured side: the engine of this machine, in this process, playing one load at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import astuple
from itertools import count
from typing import Any, TypeVar

import msgspec

from kvist.bench.fidelity.disturbance import Surroundings, read_cpu_times, surroundings
from kvist.bench.fidelity.setting import POOL_TOKENS, FidelitySetting, Scenario
from kvist.bench.fidelity.steps_between import PausedClock, StepBetween, StepsBetween
from kvist.bench.host_time import HostTime, measure_host
from kvist.bench.load_run import LoadRun, LoadRunner
from kvist.bench.loaded_model import LoadedModel
from kvist.bench.policy_comparison import served_requests
from kvist.bench.profile_grid import ProfileGrid, ProfileSize, fill_pool, probe_s
from kvist.core.clock import Clock
from kvist.metrics.benchmark_result import ServerChange, benchmark_result
from kvist.workload.text_source import TextSource, read_sentences
from kvist.workload.trace_record import TextPart, TraceRecord

Document = dict[str, Any]  # Any: what JSON holds
_Result = TypeVar("_Result")


class _DistinctTexts(TextSource):
    """Real texts, each with a first token of its own: as in the simulator, they share no token by chance."""

    def __init__(self, loaded: LoadedModel) -> None:
        tokenizer = loaded.tokenizer
        super().__init__(lambda text: tokenizer.encode(text, add_special_tokens=False), read_sentences())
        self._lowest = loaded.spec.vocab_size // 2  # far from special tokens, as a rule the lowest or highest ones
        self._numbers: dict[str, int] = {}

    def tokens(self, part: TextPart) -> list[int]:
        tokens = super().tokens(part)
        if part.start == 0 and tokens:
            number = self._numbers.setdefault(part.text_id, len(self._numbers))
            tokens[0] = self._lowest + number % (self._lowest // 2 or 1)
        return tokens


class MeasuredEngine:
    """Runs loads over `loaded`, each from an empty cache, and times the steps of the profile between their steps.

    loaded: with room for both, see `num_blocks`.
    """

    def __init__(self, loaded: LoadedModel, setting: FidelitySetting, clock: Clock) -> None:
        self._loaded = loaded
        self._scheduler = setting.scheduler
        self._clock = clock
        self._serials = count()
        self._texts = _DistinctTexts(loaded)
        fill_pool(loaded)  # memory is first touched here, in no run
        size = ProfileSize(
            max_seconds=setting.profile_s,
            first_block=num_blocks(loaded.block_size) // 2,
            max_step_tokens=loaded.max_num_batched_tokens,
            thins_grid=setting.is_quick,
        )
        self._grid = ProfileGrid(loaded, clock, size)

    def profile(self) -> Document:
        """What `kvist profile` measures, for steps that the scheduler can plan: `steps`, `rounds` of them, `host`."""

        def measure() -> tuple[list[list[float]], HostTime]:
            return self._grid.time_rounds(), measure_host(self._loaded, self._clock)

        (rounds, host), around = self._watched(measure)
        return {
            "steps": msgspec.to_builtins(self._grid.steps),
            "rounds": rounds,
            "host": astuple(host),
            "surroundings": msgspec.to_builtins(around),
        }

    def play(self, scenario: Scenario, records: Sequence[TraceRecord]) -> Document:
        """The load: `result` as of `kvist bench serve`, its steps, and those of the profile between them."""
        for record in records:  # made before the clock runs: the simulated engine has no texts to make
            for part in record.prompt:
                if isinstance(part, TextPart):
                    self._texts.tokens(part)
        (run, between), around = self._watched(lambda: self._run(scenario, records))
        result = benchmark_result(
            served_requests(run),
            duration_s=run.elapsed_s,
            setup={},
            server=ServerChange(preemptions=sum(request.num_preemptions for request in run.requests)),
            client_cpu_share=run.client_cpu_s / run.elapsed_s,
        )
        return {
            "result": result,
            "surroundings": msgspec.to_builtins(around),
            "step_s": [step.step_time_s for step in run.steps],
            "works": [list(msgspec.structs.astuple(work)) for work in run.works],
            "between": between,
        }

    def _watched(self, do: Callable[[], _Result]) -> tuple[_Result, Surroundings]:
        loaded, clock = self._loaded, self._clock
        probe_before_s = probe_s(loaded, clock)
        before, own_s, begun_s = read_cpu_times(), time.process_time(), clock.now_s()
        result = do()
        elapsed_s, own_s, after = clock.now_s() - begun_s, time.process_time() - own_s, read_cpu_times()
        probes_s = (probe_before_s, probe_s(loaded, clock))
        return result, surroundings(before, after, elapsed_s=elapsed_s, own_s=own_s, probe_s=probes_s)

    def _run(self, scenario: Scenario, records: Sequence[TraceRecord]) -> tuple[LoadRun, list[StepBetween]]:
        loaded = self._loaded
        cache = loaded.new_cache(num_blocks=scenario.pool_tokens // loaded.block_size)
        core = loaded.new_core(cache, self._scheduler)
        clock = PausedClock(self._clock)
        between = StepsBetween(self._grid, clock, self._clock)
        name = f"fidelity-{next(self._serials)}"
        runner = LoadRunner(core, clock, self._texts, name=name, on_step=lambda *_: between.time_step())
        run = runner.run(records)
        loaded.forget(runner.request_ids)
        return run, between.timed()


def num_blocks(block_size: int) -> int:
    """Of the pool to load a model with: the first half for loads, the other for the steps that are timed between."""
    return 2 * -(-POOL_TOKENS // block_size)
