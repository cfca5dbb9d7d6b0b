"""Hit shares of the frozen loads at full size, under a virtual clock: they depend on tokens and order, not on sums.

Scheduler, cache and tree are the engine's own; steps take a stated time and answers are made up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvist.bench.load_run import LoadRun
from kvist.bench.virtual_run import VirtualLoadRunner, virtual_core
from kvist.config.scheduler_config import SchedulerConfig
from kvist.core.clock import VirtualClock
from kvist.costmodel.step_work import StepWork
from kvist.repro.prefix_maximum import possible_cached_tokens
from kvist.workload.text_source import TextSource
from kvist.workload.trace_record import TraceRecord

STEP_S, TOKEN_S = 0.005, 0.0008  # about what the default model takes on two cores


class PlainStepTimes:
    """A step takes a fixed time and each of its tokens another."""

    def predict_s(self, work: StepWork) -> float:
        return STEP_S + TOKEN_S * work.num_tokens

    def margin_s(self, work: StepWork) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class VirtualHits:
    """Prompt tokens read from the cache: of all, and of those that any cache could have read."""

    num_requests: int
    hit_share: float
    share_of_possible: float


def virtual_hits(
    texts: TextSource, records: Sequence[TraceRecord], scheduler: SchedulerConfig, *, num_blocks: int
) -> VirtualHits:
    """Play `records` with the tree on. scheduler: must name its token budget."""
    clock = VirtualClock()
    core = virtual_core(scheduler, clock, PlainStepTimes(), num_blocks=num_blocks)
    run: LoadRun = VirtualLoadRunner(core, clock, texts, name="virtual").run(records)
    possible = sum(possible_cached_tokens((each.prompt_token_ids, each.token_ids) for each in run.requests))
    return VirtualHits(len(run.requests), run.hit_share, run.num_cached_tokens / max(possible, 1))
