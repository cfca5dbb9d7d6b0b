"""The predicted side: the same requests through the simulator, whose steps take what profiles say."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import msgspec

from kvist.bench.host_time import HostTime
from kvist.bench.profile import table_of_rounds
from kvist.config.cluster_config import ClusterConfig
from kvist.costmodel.profile_table import ProfileModel, ProfilePoint, ProfileTable
from kvist.costmodel.step_time_model import StepTimeModel
from kvist.costmodel.step_work import StepWork
from kvist.simulator.cluster_simulation import simulate
from kvist.simulator.simulated_benchmark import simulated_benchmark
from kvist.workload.trace_record import TraceRecord

Document = dict[str, Any]  # Any: what JSON holds


def profile_of(profiles: Sequence[Document], rounds: Sequence[Sequence[float]], *, name: str) -> ProfileTable:
    """One profile of all rounds of `profiles` and of `rounds`, which were timed between them.

    profiles: at least one, as a measured engine gives them. drift: of the last one's steps over the first one's.
    """
    first, last = ([min(each) for each in zip(*found["rounds"], strict=True)] for found in (profiles[0], profiles[-1]))
    return table_of_rounds(
        msgspec.convert(profiles[0]["steps"], list[ProfilePoint]),
        [*(one for found in profiles for one in found["rounds"]), *rounds],
        HostTime(*(statistics.fmean(each) for each in zip(*(found["host"] for found in profiles), strict=True))),
        drift=statistics.median(b / a for a, b in zip(first, last, strict=True)) - 1.0,
        name=name,
        machine={},
    )


class ScaledTimes:
    """A StepTimeModel whose steps all take `scale` times as long as `model` says."""

    def __init__(self, model: StepTimeModel, scale: float) -> None:
        self._model = model
        self._scale = scale

    def predict_s(self, work: StepWork) -> float:
        return self._scale * self._model.predict_s(work)

    def margin_s(self, work: StepWork) -> float:
        return self._scale * self._model.margin_s(work)


def predict(
    table: ProfileTable, cluster: ClusterConfig, records: Sequence[TraceRecord], *, scale: float = 1.0
) -> Document:
    """The result of the simulated run, in the same fields as the measured one. scale: of all step times."""
    step_times = ScaledTimes(ProfileModel(table), scale)
    return simulated_benchmark(simulate(cluster, records, step_times), cluster, {})


def step_time_ratio(table: ProfileTable, works: Sequence[Sequence[int]], seconds: Sequence[float]) -> float:
    """Measured over predicted time of the engine's own steps: 1 where the profile is right, whatever queues did.

    works: the fields of each StepWork, in their order.
    """
    model = ProfileModel(table)
    return sum(seconds) / sum(model.predict_s(StepWork(**dict(zip(_FIELDS, work, strict=True)))) for work in works)


_FIELDS = StepWork.__struct_fields__
