"""The measured side: the engine of this machine, in this process, playing one load at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from itertools import count
from typing import Any, TypeVar

import msgspec

from kvist.bench.fidelity.disturbance import Surroundings, read_cpu_times, surroundings
from kvist.bench.fidelity.setting import Scenario
from kvist.bench.load_run import LoadRun, LoadRunner
from kvist.bench.loaded_model import LoadedModel
from kvist.bench.policy_comparison import served_requests
from kvist.bench.profile import ProfileSize, fill_pool, probe_s, profile_model
from kvist.config.scheduler_config import SchedulerConfig
from kvist.core.clock import Clock
from kvist.metrics.benchmark_result import ServerChange, benchmark_result
from kvist.workload.text_source import TextSource, read_sentences
from kvist.workload.trace_record import TextPart, TraceRecord

Document = dict[str, Any]  # Any: what JSON holds
_Result = TypeVar("_Result")


class MeasuredEngine:
    """Runs loads over `loaded` from an empty cache each. scheduler: of all runs."""

    def __init__(self, loaded: LoadedModel, scheduler: SchedulerConfig, clock: Clock) -> None:
        self._loaded = loaded
        self._scheduler = scheduler
        self._clock = clock
        self._serials = count()
        tokenizer = loaded.tokenizer
        self._texts = TextSource(lambda text: tokenizer.encode(text, add_special_tokens=False), read_sentences())
        fill_pool(loaded)  # memory is first touched here, in no run

    def profile(self, *, seconds: float, thins_grid: bool, name: str, machine: Mapping[str, str]) -> Document:
        """`table`: what `kvist profile` measures, for the steps that the scheduler can plan; its `surroundings`."""
        loaded = self._loaded
        size = ProfileSize(
            max_seconds=seconds,
            max_kv_tokens=loaded.num_blocks * loaded.block_size,
            max_step_tokens=loaded.max_num_batched_tokens,
            thins_grid=thins_grid,
        )
        table, around = self._watched(lambda: profile_model(loaded, self._clock, size, name=name, machine=machine))
        return {"table": msgspec.to_builtins(table), "surroundings": msgspec.to_builtins(around)}

    def play(self, scenario: Scenario, records: Sequence[TraceRecord]) -> Document:
        """`result` in the fields of `kvist bench serve`, its `surroundings`, and the time and work of each step."""
        for record in records:  # made before the clock runs: the simulated engine has no texts to make
            for part in record.prompt:
                if isinstance(part, TextPart):
                    self._texts.tokens(part)
        run, around = self._watched(lambda: self._run(scenario, records))
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
            "works": [list(astuple(work)) for work in run.works],
        }

    def _watched(self, do: Callable[[], _Result]) -> tuple[_Result, Surroundings]:
        loaded, clock = self._loaded, self._clock
        probe_before_s = probe_s(loaded, clock)
        before, own_s, begun_s = read_cpu_times(), time.process_time(), clock.now_s()
        result = do()
        elapsed_s, own_s, after = clock.now_s() - begun_s, time.process_time() - own_s, read_cpu_times()
        probes_s = (probe_before_s, probe_s(loaded, clock))
        return result, surroundings(before, after, elapsed_s=elapsed_s, own_s=own_s, probe_s=probes_s)

    def _run(self, scenario: Scenario, records: Sequence[TraceRecord]) -> LoadRun:
        loaded = self._loaded
        cache = loaded.new_cache(num_blocks=scenario.pool_tokens // loaded.block_size)
        core = loaded.new_core(cache, self._scheduler)
        runner = LoadRunner(core, self._clock, self._texts, name=f"fidelity-{next(self._serials)}")
        run = runner.run(records)
        loaded.forget(runner.request_ids)
        return run
