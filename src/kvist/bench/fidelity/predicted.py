"""The predicted side: the same requests through the simulator, whose steps take what profiles say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvist.bench.fidelity.machine_speed import MachineSpeed
from kvist.bench.fidelity.steps_between import StepBetween
from kvist.bench.host_time import HostTime
from kvist.bench.profile import drift_of, table_of_rounds
from kvist.config.cluster_config import ClusterConfig
from kvist.costmodel.profile_table import ProfileModel, ProfilePoint, ProfileTable
from kvist.costmodel.step_work import StepWork
from kvist.simulator.cluster_simulation import simulate
from kvist.simulator.simulated_benchmark import simulated_benchmark
from kvist.workload.trace_record import TraceRecord

Document = dict[str, Any]  # Any: what JSON holds


def profile_of(profile: Document, rounds: Sequence[Sequence[float]], *, name: str) -> ProfileTable:
    """One profile of the rounds of `profile`, as a measured engine gives it, and of `rounds`, which came later."""
    every = [*profile["rounds"], *rounds]
    return table_of_rounds(
        msgspec.convert(profile["steps"], list[ProfilePoint]),
        every,
        HostTime(*profile["host"]),
        drift=drift_of(every),
        name=name,
        machine={},
    )


def predict(
    table: ProfileTable, cluster: ClusterConfig, records: Sequence[TraceRecord], timed: Sequence[StepBetween] = ()
) -> Document:
    """The result of the simulated run, in the same fields as the measured one.

    timed: steps of the profile that were timed during the run: its steps take what they do at the speed that these say.
    """
    speed = MachineSpeed(table, timed)
    return simulated_benchmark(simulate(cluster, records, speed, observer=speed), cluster, {})


def step_time_ratio(table: ProfileTable, works: Sequence[Sequence[int]], seconds: Sequence[float]) -> float:
    """Measured over predicted time of the engine's own steps: 1 where the profile is right, whatever queues did.

    works: the fields of each StepWork, in their order.
    """
    model = ProfileModel(table)
    fields = StepWork.__struct_fields__
    return sum(seconds) / sum(model.predict_s(StepWork(**dict(zip(fields, work, strict=True)))) for work in works)
