"""The baseline of iteration-level batching: padded batches that run until all are done, at their best size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvist.bench.load_run import LoadRun
from kvist.config.scheduler_config import SchedulerConfig
from kvist.repro.measured_engine import MeasuredEngine
from kvist.workload.trace_record import TraceRecord

STATIC_TOKEN_BUDGET = 8192  # of a padded step: bounds the batch only where prompts are long
SIZES, QUICK_SIZES = (4, 8, 16, 32), (4, 8)
NEVER_S = 1e9


@dataclass(frozen=True, slots=True)
class StaticSetting:
    """is_sorted: batches are formed of prompts of similar length, as an offline job can."""

    batch_size: int
    is_sorted: bool = False

    @property
    def scheduler(self) -> SchedulerConfig:
        return SchedulerConfig(
            policy="static",
            max_num_batched_tokens=STATIC_TOKEN_BUDGET,
            max_num_seqs=self.batch_size,
            queue_order="shortest_prefill_first" if self.is_sorted else "fcfs",
            ageing_s=NEVER_S,
        )

    def __str__(self) -> str:
        return f"static batches of {self.batch_size}" + (", sorted by length" if self.is_sorted else "")


def play_static(engine: MeasuredEngine, name: str, records: Sequence[TraceRecord], setting: StaticSetting) -> LoadRun:
    kv_cache = engine.model.new_cache(enable_prefix_caching=False)
    return engine.play(f"{name}, {setting}", records, scheduler=setting.scheduler, kv_cache=kv_cache)


def best_static(
    engine: MeasuredEngine, name: str, records: Sequence[TraceRecord], sizes: Sequence[int], *, is_sorted: bool = False
) -> tuple[StaticSetting, LoadRun]:
    """The batch size with the highest throughput on these requests, and its run."""
    settings = [StaticSetting(size, is_sorted) for size in sizes]
    runs = [(setting, play_static(engine, name, records, setting)) for setting in settings]
    return max(runs, key=lambda pair: pair[1].output_tokens_per_s)
