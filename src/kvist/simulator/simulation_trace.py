"""Writes a simulation as one Chrome trace: each replica is an engine of its own in it."""

from __future__ import annotations

from collections.abc import Callable

from kvist.config.cluster_config import ClusterConfig
from kvist.core.request_events import EventBatch
from kvist.core.step_plan import StepPlan
from kvist.metrics.chrome_trace import ChromeTraceWriter
from kvist.metrics.step_record import step_record


class SimulationTrace:
    """An observer of `simulate`. `write` gets text; `end` closes the trace."""

    def __init__(self, config: ClusterConfig, write: Callable[[str], object]) -> None:
        names = [group.name for group in config.groups for _ in range(group.count)]
        self._writers = [
            ChromeTraceWriter(write, engine=f"replica {number} ({name})", number=number)
            for number, name in enumerate(names)
        ]

    def note_turn(self, replica_id: int, plan: StepPlan | None, batch: EventBatch) -> None:
        record = None if plan is None else step_record(plan, batch)
        self._writers[replica_id].add_turn(batch.events, record)

    def end(self) -> None:
        self._writers[0].end()
