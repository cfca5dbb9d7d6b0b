"""Runs the parts of a comparison in their order, those that are not done yet, and puts its result together."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from kvist.bench.fidelity.comparison import GOALS, METRICS, compared_row, judge
from kvist.bench.fidelity.disturbance import Surroundings
from kvist.bench.fidelity.measured import MeasuredEngine
from kvist.bench.fidelity.parts import Document, Parts
from kvist.bench.fidelity.predicted import predict, profile_of, step_time_ratio
from kvist.bench.fidelity.setting import MIN_REQUESTS, FidelitySetting, Scenario, run_name, simulated_cluster
from kvist.bench.profile import round_levels
from kvist.core.clock import Clock
from kvist.costmodel.profile_table import ProfileTable
from kvist.workload.adapting import all_at_once, at_mean_rate, num_starts
from kvist.workload.trace_record import TraceRecord

LEAST_QUIET_REPEATS = 2  # with fewer, all repeats count


class FidelitySession:
    """block_size, max_model_len: of the engine that is measured."""

    def __init__(
        self, setting: FidelitySetting, parts: Parts, *, model: str, block_size: int, max_model_len: int
    ) -> None:
        self._setting = setting
        self._parts = parts
        self._model = model
        self._block_size = block_size
        self._max_model_len = max_model_len
        self._scenarios = {scenario.name: scenario for scenario in setting.scenarios}

    @property
    def parts_left(self) -> list[str]:
        return [name for name in self._setting.parts if self._is_left(name)]

    def _is_left(self, name: str) -> bool:
        """Whether a part is to be done, or done again because it was disturbed."""
        if name not in self._parts:
            return True
        part = self._parts[name]
        return part["attempts"] <= self._setting.retries and bool(_surroundings(part).faults())

    def run(
        self,
        engine: MeasuredEngine,
        clock: Clock,
        *,
        max_seconds: float,
        commit: str,
        say: Callable[[str], None],
    ) -> None:
        """Do parts until all are done, or until the next would begin after `max_seconds`.

        commit: of the code that runs. A part that was disturbed is done again, up to `retries` times. The quietest try
        counts, whatever it measured.
        """
        begun_s = clock.now_s()
        names = self._setting.parts
        for name in names:
            while self._is_left(name):
                if clock.now_s() - begun_s >= max_seconds:
                    return
                say(f"{names.index(name) + 1} of {len(names)}: {name}")
                self._keep(name, {**self._do(name, engine), "commit": commit})

    def _keep(self, name: str, part: Document) -> None:
        attempts = 1
        if name in self._parts:
            last = self._parts[name]
            attempts += last["attempts"]
            if _surroundings(last).taken_share <= _surroundings(part).taken_share:
                part = last
        self._parts.add(name, {**part, "attempts": attempts})

    def _do(self, name: str, engine: MeasuredEngine) -> Document:
        kind, _, rest = name.partition("/")
        if kind == "profile":
            return engine.profile()
        if kind == "capacity":
            return self._measure_capacity(self._scenarios[rest], engine)
        scenario_name, load_factor, _ = rest.rsplit("/", 2)
        scenario = self._scenarios[scenario_name]
        return engine.play(scenario, self._records(scenario, float(load_factor)))

    def _measure_capacity(self, scenario: Scenario, engine: MeasuredEngine) -> Document:
        """All requests at once: a few first, which tell how many the other runs shall have."""
        trial = engine.play(scenario, all_at_once(scenario.records(MIN_REQUESTS)))
        count = self._setting.num_requests(scenario, trial["result"]["request_throughput"])
        return trial if count == MIN_REQUESTS else engine.play(scenario, all_at_once(scenario.records(count)))

    def _records(self, scenario: Scenario, load_factor: float | None) -> list[TraceRecord]:
        """As many as its capacity was measured with, at that share of it; None: all at once."""
        capacity = self._parts[f"capacity/{scenario.name}"]["result"]
        records = scenario.records(capacity["completed"])
        if load_factor is None:
            return all_at_once(records)
        starts_per_s = capacity["request_throughput"] * num_starts(records) / len(records)
        return at_mean_rate(records, load_factor * starts_per_s)

    def result(self) -> Document:
        """What the finished parts say. Needs the first profile and all capacities."""
        done = [self._parts[name] for name in self._setting.parts if name in self._parts]
        usual_probe_s = statistics.median(seconds for part in done for seconds in _surroundings(part).probe_s)
        profiles = _quiet_profiles(done, usual_probe_s)
        rounds = [one for part in done if "rounds_beside" in part for one in _quiet_rounds(part, usual_probe_s)]
        table = profile_of(profiles, rounds, name=self._model)
        first_table = profile_of(profiles[:1], [], name=self._model)
        cells = [
            cell
            for scenario in self._setting.scenarios
            for load_factor in (None, *scenario.load_factors)
            if (cell := self._cell(scenario, load_factor, table, first_table, usual_probe_s)) is not None
        ]
        return {
            "commits": list(dict.fromkeys(part["commit"] for part in done)),
            "profile": {
                "round_levels": round_levels([*(one for found in profiles for one in found["rounds"]), *rounds]),
                "error": table.error,
                "drift": table.drift,
                "host_s": table.host_s,
            },
            "cells": cells,
            "goals": _verdicts(cells, "rows"),
            "goals_by_first_profile": _verdicts(cells, "rows_by_first_profile"),
            "goals_at_run_speed": _verdicts(cells, "rows_at_run_speed"),
        }

    def _cell(
        self,
        scenario: Scenario,
        load_factor: float | None,
        table: ProfileTable,
        first_table: ProfileTable,
        usual_probe_s: float,
    ) -> Document | None:
        names = (
            [f"capacity/{scenario.name}"]
            if load_factor is None
            else [run_name(scenario.name, load_factor, repeat + 1) for repeat in range(self._setting.repeats)]
        )
        runs = [self._parts[name] for name in names if name in self._parts]
        if not runs:
            return None
        faults = [_surroundings(run).faults(usual_probe_s) for run in runs]
        quiet = [run for run, found in zip(runs, faults, strict=True) if not found]
        counted = quiet if len(quiet) >= min(LEAST_QUIET_REPEATS, len(runs)) else runs
        results = [run["result"] for run in counted]
        records = self._records(scenario, load_factor)
        cluster = simulated_cluster(
            scenario, self._setting.scheduler, block_size=self._block_size, max_model_len=self._max_model_len
        )
        levels = [speed_level(run, table, usual_probe_s) for run in counted]
        ratios = [step_time_ratio(table, run["works"], run["step_s"]) for run in counted]
        return {
            "scenario": scenario.name,
            "load": scenario.load,
            "pool_tokens": scenario.pool_tokens,
            "load_factor": load_factor,
            "requests": len(records),
            "rate_per_s": None if load_factor is None else load_factor * self._capacity_per_s(scenario),
            "repeats": len(runs),
            "repeats_counted": len(counted),
            "disturbed": [found for found in faults if found],
            "others_share": _mean([run["surroundings"]["others_share"] for run in counted]),
            "client_cpu_share": _mean([run["result"]["client_cpu_share"] for run in counted]),
            "speed_levels": levels,
            "step_time_ratios": ratios,
            "rows": _rows(results, [predict(table, cluster, records, scale=each) for each in levels]),
            "rows_by_first_profile": _rows(results, [predict(first_table, cluster, records)]),
            "rows_at_run_speed": _rows(results, [predict(table, cluster, records, scale=each) for each in ratios]),
        }

    def _capacity_per_s(self, scenario: Scenario) -> float:
        capacity: float = self._parts[f"capacity/{scenario.name}"]["result"]["request_throughput"]
        return capacity


def _quiet_profiles(done: Sequence[Document], usual_probe_s: float) -> list[Document]:
    """Those that nothing disturbed, or all if there are none."""
    profiles = [part for part in done if "rounds" in part]
    return [part for part in profiles if not _surroundings(part).faults(usual_probe_s)] or profiles


def _quiet_rounds(run: Document, usual_probe_s: float) -> list[list[float]]:
    """Of the rounds beside a run those that nothing disturbed."""
    beside = zip(run["rounds_beside"], msgspec.convert(run["beside_surroundings"], list[Surroundings]), strict=True)
    return [one for one, around in beside if not around.faults(usual_probe_s)]


def speed_level(run: Document, table: ProfileTable, usual_probe_s: float) -> float:
    """How long steps took just before and after the run, as a multiple of the profile; 1 if both were disturbed."""
    levels = [
        seconds / point.seconds
        for one in _quiet_rounds(run, usual_probe_s)
        for seconds, point in zip(one, table.points, strict=True)
    ]
    return statistics.fmean(levels) if levels else 1.0


def _surroundings(part: Document) -> Surroundings:
    return msgspec.convert(part["surroundings"], Surroundings)


def _verdicts(cells: Sequence[Document], rows: str) -> list[Document]:
    """How the cells keep to the goals by one of their kinds of rows."""
    judged = [judge(goal, [{**cell, "rows": cell[rows]} for cell in cells]) for goal in GOALS]
    return [verdict for verdict in judged if verdict is not None]


def _rows(results: Sequence[Document], predicted: Sequence[Document]) -> list[Document]:
    return [row for metric in METRICS if (row := compared_row(metric, results, predicted)) is not None]


def _mean(values: Sequence[Any]) -> float | None:
    """Any: numbers, or None where one is not known."""
    return None if None in values else statistics.fmean(values)
