"""The predicted side: the same requests through the simulator, whose steps take what profiles say."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from kvist.bench.host_time import HostTime
from kvist.bench.profile import fit_table
from kvist.config.cluster_config import ClusterConfig
from kvist.costmodel.profile_table import ProfileModel, ProfileTable
from kvist.costmodel.step_work import StepWork
from kvist.simulator.cluster_simulation import simulate
from kvist.simulator.simulated_benchmark import simulated_benchmark
from kvist.workload.trace_record import TraceRecord

Document = dict[str, Any]  # Any: what JSON holds


def pooled(tables: Sequence[ProfileTable]) -> ProfileTable:
    """One profile of several that were taken at different times: all their points, and the mean of the rest.

    drift: of the last profile's points over the first one's.
    """
    if len(tables) == 1:
        return tables[0]
    host = HostTime(
        statistics.fmean(table.host_s for table in tables),
        statistics.fmean(table.host_sequence_s for table in tables),
        statistics.fmean(table.host_token_s for table in tables),
    )
    changes = [last.seconds / first.seconds for first, last in zip(tables[0].points, tables[-1].points, strict=True)]
    return fit_table(
        [point for table in tables for point in table.points],
        host,
        drift=statistics.median(changes) - 1.0,
        name=tables[0].model,
        machine=tables[0].machine,
        usual=statistics.fmean(table.usual for table in tables),
    )


def predict(table: ProfileTable, cluster: ClusterConfig, records: Sequence[TraceRecord]) -> Document:
    """The result of the simulated run, in the same fields as the measured one."""
    return simulated_benchmark(simulate(cluster, records, ProfileModel(table)), cluster, {})


def step_time_ratio(table: ProfileTable, works: Sequence[Sequence[int]], seconds: Sequence[float]) -> float:
    """Measured over predicted time of the engine's own steps: 1 where the profile is right, whatever queues did.

    works: the fields of each StepWork, in their order.
    """
    model = ProfileModel(table)
    return sum(seconds) / sum(model.predict_s(StepWork(**dict(zip(_FIELDS, work, strict=True)))) for work in works)


_FIELDS = tuple(StepWork.__dataclass_fields__)
