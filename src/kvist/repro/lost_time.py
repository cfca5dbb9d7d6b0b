"""Where the time of a run goes that its needed work, at best rates, does not take: by operations, and outside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvist.bench.load_run import LoadRun, RequestRun
from kvist.core.request import RequestId
from kvist.core.request_events import StepSummary
from kvist.execution.model_executor import ModelExecutor
from kvist.metrics.step_record import OperationTime
from kvist.metrics.utilization import BestRates
from kvist.repro.best_rates import steps_while_prompts_wait

ATTENTION = "attention"  # begins the names of its operations


class OperationLog:
    """Has the operations of all steps timed that `executor` takes from now on: an OnStep of a LoadRunner.

    steps: the operations of each, empty where the executor cannot time them.
    """

    def __init__(self, executor: ModelExecutor) -> None:
        self.steps: list[Sequence[OperationTime]] = []
        self._executor = executor
        executor.time_next_step()

    def __call__(self, _summary: StepSummary, _requests: Mapping[RequestId, RequestRun]) -> None:
        self.steps.append(self._executor.take_operation_times())
        self._executor.time_next_step()


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTime:
    """Shares of the time while prompts wait, beyond the needed work at best rates; together 1 - utilization.

    products: operations on each token and on the head's rows. outside: in steps, outside operations: planning them,
    laying them out, sampling. between: while no step ran.
    """

    products: float
    attention: float
    outside: float
    between: float


def lost_time(rates: BestRates, run: LoadRun, operations: Sequence[Sequence[OperationTime]]) -> LostTime | None:
    """operations: of each of the run's steps. None if they were not timed."""
    kept, elapsed_s = steps_while_prompts_wait(run)
    if not all(operations[: len(kept)]):
        return None
    timed = [time for times in operations[: len(kept)] for time in times]
    attention_s = sum(time.duration_s for time in timed if time.name.startswith(ATTENTION))
    all_operations_s = sum(time.duration_s for time in timed)
    needed_attention_s = sum(
        rates.pair_s * work.prefill_pairs + rates.decode_key_s * work.decode_context_tokens for work, _ in kept
    )
    needed_s = sum(rates.needed_s(work, step.num_padding_tokens) for work, step in kept)
    steps_s = sum(step.step_time_s for _, step in kept)
    return LostTime(
        products=(all_operations_s - attention_s - (needed_s - needed_attention_s)) / elapsed_s,
        attention=(attention_s - needed_attention_s) / elapsed_s,
        outside=(steps_s - all_operations_s) / elapsed_s,
        between=1.0 - steps_s / elapsed_s,
    )
