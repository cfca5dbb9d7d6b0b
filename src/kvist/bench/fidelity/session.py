"""Runs the parts of a comparison in their order, those that are not done yet, and puts its result together."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from kvist.bench.fidelity.comparison import GOALS, METRICS, compared_row, judge
from kvist.bench.fidelity.disturbance import Surroundings
from kvist.bench.fidelity.machine_speed import MachineSpeed
from kvist.bench.fidelity.measured import MeasuredEngine
from kvist.bench.fidelity.parts import Document, Parts
from kvist.bench.fidelity.predicted import predict, profile_of, step_time_ratio
from kvist.bench.fidelity.setting import MIN_REQUESTS, PROFILE, FidelitySetting, Scenario, run_name, simulated_cluster
from kvist.bench.fidelity.steps_between import StepBetween, rounds_of
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
        if name == PROFILE:
            return engine.profile()
        scenario_name, kind, repeat = name.rsplit("/", 2)
        scenario = self._scenarios[scenario_name]
        if kind != "capacity":
            return engine.play(scenario, self._records(scenario, float(kind), int(repeat)))
        if repeat != "1":
            return engine.play(scenario, self._records(scenario, None, int(repeat)))
        # A few requests tell how many all runs shall have.
        trial = engine.play(scenario, all_at_once(scenario.records(MIN_REQUESTS)))
        count = self._setting.num_requests(scenario, trial["result"]["request_throughput"])
        return trial if count == MIN_REQUESTS else engine.play(scenario, all_at_once(scenario.records(count)))

    def _records(self, scenario: Scenario, load_factor: float | None, repeat: int) -> list[TraceRecord]:
        """As many in all runs, at that share of the capacity that the repeat measured; None: all at once."""
        records = scenario.records(self._parts[run_name(scenario.name, None, 1)]["result"]["completed"])
        if load_factor is None:
            return all_at_once(records)
        starts_per_s = self._capacity_per_s(scenario, repeat) * num_starts(records) / len(records)
        return at_mean_rate(records, load_factor * starts_per_s)

    def _capacity_per_s(self, scenario: Scenario, repeat: int) -> float:
        capacity: float = self._parts[run_name(scenario.name, None, repeat)]["result"]["request_throughput"]
        return capacity

    def result(self) -> Document:
        """What the finished parts say. Needs the profile."""
        done = [self._parts[name] for name in self._setting.parts if name in self._parts]
        usual_probe_s = statistics.median(seconds for part in done for seconds in _surroundings(part).probe_s)
        profile = self._parts[PROFILE]
        quiet = [part for part in done if "works" in part and not _surroundings(part).faults(usual_probe_s)]
        rounds = [one for part in quiet for one in rounds_of(_timed(part), len(profile["steps"]))]
        table = profile_of(profile, rounds, name=self._model)
        first_table = profile_of(profile, [], name=self._model)
        cells = [
            cell
            for scenario in self._setting.scenarios
            for load_factor in (None, *scenario.load_factors)
            if (cell := self._cell(scenario, load_factor, table, first_table, usual_probe_s)) is not None
        ]
        return {
            "commits": list(dict.fromkeys(part["commit"] for part in done)),
            "profile": {
                "round_levels": round_levels([*profile["rounds"], *rounds]),
                "error": table.error,
                "drift": table.drift,
                "host_s": table.host_s,
            },
            "cells": cells,
            "goals": _verdicts(cells, "rows"),
            "goals_by_first_profile": _verdicts(cells, "rows_by_first_profile"),
        }

    def _cell(
        self,
        scenario: Scenario,
        load_factor: float | None,
        table: ProfileTable,
        first_table: ProfileTable,
        usual_probe_s: float,
    ) -> Document | None:
        done = [
            (self._parts[name], repeat)
            for repeat in range(1, self._setting.repeats + 1)
            if (name := run_name(scenario.name, load_factor, repeat)) in self._parts
        ]
        if not done:
            return None
        faults = [_surroundings(run).faults(usual_probe_s) for run, _ in done]
        quiet = [each for each, found in zip(done, faults, strict=True) if not found]
        counted = quiet if len(quiet) >= min(LEAST_QUIET_REPEATS, len(done)) else done
        runs = [run for run, _ in counted]
        loads = [self._records(scenario, load_factor, repeat) for _, repeat in counted]
        cluster = simulated_cluster(
            scenario, self._setting.scheduler, block_size=self._block_size, max_model_len=self._max_model_len
        )

        results, timed = [run["result"] for run in runs], [_timed(run) for run in runs]
        predicted = [predict(table, cluster, load, steps) for load, steps in zip(loads, timed, strict=True)]
        return {
            "scenario": scenario.name,
            "load": scenario.load,
            "pool_tokens": scenario.pool_tokens,
            "load_factor": load_factor,
            "requests": len(loads[0]),
            "capacities_per_s": [self._capacity_per_s(scenario, repeat) for _, repeat in counted],
            "repeats": len(done),
            "repeats_counted": len(counted),
            "disturbed": [found for found in faults if found],
            "others_share": _mean([run["surroundings"]["others_share"] for run in runs]),
            "client_cpu_share": _mean([run["result"]["client_cpu_share"] for run in runs]),
            "speeds_between": [MachineSpeed(table, steps).means for steps in timed],
            "step_time_ratios": [step_time_ratio(table, run["works"], run["step_s"]) for run in runs],
            "rows": _rows(results, predicted),
            "rows_by_first_profile": _rows(results, [predict(first_table, cluster, load) for load in loads]),
        }


def _timed(part: Document) -> list[StepBetween]:
    return msgspec.convert(part["between"], list[StepBetween])


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
