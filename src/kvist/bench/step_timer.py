"""Times single steps of made-up requests, to see what a step of given chunks takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvist.core.clock import Clock
from kvist.core.request import RequestId, pack_token_ids
from kvist.core.sampling_params import SamplingParams
from kvist.core.step_plan import ScheduledRequestData, StepPlan, TableEdit
from kvist.engine.executor import Executor
from kvist.engine.lone_step import run_idle_step

Chunks = Sequence[tuple[int, int]]  # new tokens, tokens of context before them


class StepTimer:
    """Uses blocks from `first_block` on, which nobody else may use meanwhile. Leaves no request behind."""

    def __init__(self, executor: Executor, clock: Clock, *, block_size: int, first_block: int = 0) -> None:
        self._executor = executor
        self._clock = clock
        self._block_size = block_size
        self._first_block = first_block

    def best_s(self, chunks: Chunks, *, samples: bool = True, repeats: int = 3) -> float:
        """Shortest time of a step of `chunks`: (new tokens, tokens of context before them), in `repeats` tries.

        The context is whatever the blocks hold. samples: whether each chunk's last token is sampled after.
        """
        plan = self._plan(chunks, samples=samples)
        return min(self._time(plan) for _ in range(repeats))

    def best_times_s(self, steps: Mapping[str, Chunks], *, repeats: int, samples: bool = True) -> dict[str, float]:
        """As `best_s` for several steps, which take turns: what else the machine does then hits all of them."""
        plans = {name: self._plan(chunks, samples=samples) for name, chunks in steps.items()}
        times: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(repeats):
            for name, plan in plans.items():
                times[name].append(self._time(plan))
        return {name: min(each) for name, each in times.items()}

    def sampled(self, chunks: Chunks) -> list[int]:
        """The token that each chunk of one such step gives."""
        plan = self._plan(chunks, samples=True)
        result = self._executor.finish_step(self._executor.begin_step(plan))
        run_idle_step(self._executor, dropped_request_ids=plan.request_ids)
        return [tokens[0] for tokens in result.sampled_token_ids if tokens]

    def _plan(self, chunks: Chunks, *, samples: bool) -> StepPlan:
        requests = [RequestId(f"step-timer/{row}") for row in range(len(chunks))]
        return StepPlan(
            step_id=-1,
            request_ids=requests,
            start_positions=[context for _, context in chunks],
            num_scheduled_tokens=[num_tokens for num_tokens, _ in chunks],
            samples=[samples] * len(chunks),
            num_total_tokens=sum(num_tokens for num_tokens, _ in chunks),
            new_requests=[_data(id_, sum(chunk)) for id_, chunk in zip(requests, chunks, strict=True)],
            table_edits=self._tables(requests, [sum(chunk) for chunk in chunks]),
        )

    def _tables(self, requests: Sequence[RequestId], nums_tokens: Sequence[int]) -> list[TableEdit]:
        edits, first = [], self._first_block
        for request_id, num_tokens in zip(requests, nums_tokens, strict=True):
            end = first + -(-num_tokens // self._block_size)
            edits.append(TableEdit(request_id, 0, list(range(first, end))))
            first = end
        return edits

    def _time(self, plan: StepPlan) -> float:
        begun_s = self._clock.now_s()
        self._executor.finish_step(self._executor.begin_step(plan))
        step_time_s = self._clock.now_s() - begun_s
        run_idle_step(self._executor, dropped_request_ids=plan.request_ids)
        return step_time_s


def _data(request_id: RequestId, num_tokens: int) -> ScheduledRequestData:
    return ScheduledRequestData(
        request_id=request_id,
        token_ids=pack_token_ids([1 + i % 97 for i in range(num_tokens)]),
        num_prompt_tokens=num_tokens,
        sampling=SamplingParams(temperature=0.0, max_tokens=1),
        sample_index=0,
        eos_token_ids=(),
    )
