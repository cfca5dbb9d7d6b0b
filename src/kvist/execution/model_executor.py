"""Runs step plans: keeps each request's tokens and block table, has rows computed, samples, scores prompts."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from kvist.core.random_numbers import seed_for
from kvist.core.request import RequestId, unpack_token_ids
from kvist.core.step_plan import ScheduledRequestData, StepPlan
from kvist.core.step_result import StepResult, TokenLogprobs
from kvist.execution.logits import LogitRow, Logits
from kvist.execution.runner import Runner
from kvist.execution.sampler import Sampler, SamplingRow, takes_best
from kvist.execution.step_batch import StepBatch, build_batch


@dataclass(slots=True)
class RequestTokens:
    """What the executor keeps of one request."""

    data: ScheduledRequestData
    seed: int
    token_ids: array[int]  # prompt and output
    block_ids: array[int] = field(default_factory=lambda: array("i"))

    def row(self, num_tokens: int) -> SamplingRow:
        """What decides the token after the first `num_tokens`."""
        return SamplingRow(
            params=self.data.sampling,
            token_ids=self.token_ids[:num_tokens],
            num_prompt_tokens=self.data.num_prompt_tokens,
            seed=self.seed,
            sample_index=self.data.sample_index,
            eos_token_ids=self.data.eos_token_ids,
        )


class WantedLogits(msgspec.Struct, frozen=True, gc=False):
    """One row of logits to compute: for the plan row's next token, or to score the prompt token after `position`."""

    plan_row: int
    position: int
    is_sample: bool


class ModelExecutor:
    """Implements engine.executor.Executor over a Runner. Computes a step when it is begun."""

    def __init__(self, runner: Runner, sampler: Sampler, *, engine_seed: int) -> None:
        self._runner = runner
        self._sampler = sampler
        self._engine_seed = engine_seed
        self._requests: dict[RequestId, RequestTokens] = {}

    @property
    def num_blocks(self) -> int:
        return self._runner.num_blocks

    @property
    def description(self) -> str:
        """All that the speed of a step depends on besides the model."""
        return self._runner.description

    @property
    def weight_bytes(self) -> int:
        return self._runner.weight_bytes

    @property
    def workspace_bytes(self) -> int | None:
        return self._runner.workspace_bytes

    def resize(self, max_num_tokens: int) -> None:
        """Make ready for steps of up to `max_num_tokens` tokens, padding included. Between steps only."""
        self._runner.resize(max_num_tokens)

    def begin_step(self, plan: StepPlan) -> StepResult:
        """Compute the step. Raises ValueError for draft tokens, which this executor does not verify."""
        if plan.draft_token_ids:
            raise ValueError("this executor does not verify draft tokens")
        self._apply_changes(plan)
        result = StepResult(step_id=plan.step_id, sampled_token_ids=[() for _ in plan.request_ids])
        if plan.request_ids:
            self._compute(plan, result)
        return result

    def finish_step(self, handle: StepResult) -> StepResult:
        return handle

    def close(self) -> None:
        self._requests.clear()
        self._runner.close()

    def _apply_changes(self, plan: StepPlan) -> None:
        for request_id in plan.dropped_request_ids:
            self._requests.pop(request_id, None)
        for data in plan.new_requests:
            seed = data.sampling.seed
            self._requests[data.request_id] = RequestTokens(
                data,
                seed_for(data.request_id, self._engine_seed) if seed is None else seed,
                unpack_token_ids(data.token_ids),
            )
        for edit in plan.table_edits:
            self._requests[edit.request_id].block_ids[edit.first :] = array("i", edit.block_ids)
        if plan.block_moves:
            self._runner.move(plan.block_moves)

    def _compute(self, plan: StepPlan, result: StepResult) -> None:
        requests = [self._requests[request_id] for request_id in plan.request_ids]
        batch = self._build_batch(plan, requests)
        wanted = list_wanted_logits(plan, requests)
        first_rows = [chunk.first_row - chunk.start for chunk in batch.chunks]
        logit_rows = np.array([first_rows[item.plan_row] + item.position for item in wanted], np.int64)

        def take_logits(indices: range, logits: Logits) -> None:
            self._take_logits(wanted[indices.start : indices.stop], logits, requests, result)

        finite_rows = self._runner.run(batch, logit_rows, take_logits)
        if not finite_rows.all():
            for i, chunk in enumerate(batch.chunks):
                if not finite_rows[chunk.rows].all():
                    message = "the model computed numbers that are not finite for this request"
                    self._fail(result, i, requests[i], message)
        for request, sampled in zip(requests, result.sampled_token_ids, strict=True):
            request.token_ids.extend(sampled)

    def _build_batch(self, plan: StepPlan, requests: Sequence[RequestTokens]) -> StepBatch:
        rows = []
        for request, start, count in zip(requests, plan.start_positions, plan.num_scheduled_tokens, strict=True):
            token_ids = request.token_ids[start : start + count]
            assert len(token_ids) == count > 0, "the plan schedules tokens that nobody knows yet"
            rows.append((token_ids, start, request.block_ids))
        return build_batch(rows, block_size=self._runner.block_size, num_padding_tokens=plan.num_padding_tokens)

    def _take_logits(
        self,
        wanted: Sequence[WantedLogits],
        logits: Logits,
        requests: Sequence[RequestTokens],
        result: StepResult,
    ) -> None:
        """Turn one tile of logits into sampled tokens and scores of prompt tokens."""
        best = logits.best
        for i, (item, is_finite) in enumerate(zip(wanted, logits.is_finite, strict=True)):
            if not is_finite:
                continue
            plan_row, request = item.plan_row, requests[item.plan_row]
            if not item.is_sample:
                score = self._score_prompt(logits[i], item, request)
                result.prompt_logprobs.setdefault(plan_row, []).append(score)
            elif takes_best(request.data.sampling, item.position + 1 - request.data.num_prompt_tokens):
                result.sampled_token_ids[plan_row] = (best[i],)
            else:
                self._sample(logits[i], item, request, result)

    def _sample(self, logits: LogitRow, item: WantedLogits, request: RequestTokens, result: StepResult) -> None:
        with np.errstate(all="ignore"):  # temperatures may overflow logits, which the sampler looks for
            sampled = self._sampler.sample(logits, request.row(item.position + 1))
        if sampled.token_id is None:
            self._fail(result, item.plan_row, request, sampled.error or "")
            return
        result.sampled_token_ids[item.plan_row] = (sampled.token_id,)
        if sampled.logprobs is not None:
            result.logprobs[item.plan_row] = [sampled.logprobs]

    def _score_prompt(self, logits: LogitRow, item: WantedLogits, request: RequestTokens) -> TokenLogprobs:
        row = request.row(item.position + 1)
        next_token = request.token_ids[item.position + 1]
        with np.errstate(all="ignore"):
            return self._sampler.score(logits, row, next_token, request.data.sampling.prompt_logprobs or 0)

    @staticmethod
    def _fail(result: StepResult, plan_row: int, request: RequestTokens, message: str) -> None:
        result.errors[request.data.request_id] = message
        result.sampled_token_ids[plan_row] = ()
        result.logprobs.pop(plan_row, None)
        result.prompt_logprobs.pop(plan_row, None)


def list_wanted_logits(plan: StepPlan, requests: Sequence[RequestTokens]) -> list[WantedLogits]:
    """Rows of logits that the plan's result needs, row by row, prompt positions in order before the sample."""
    wanted = []
    for i, request in enumerate(requests):
        end = plan.start_positions[i] + plan.num_scheduled_tokens[i]
        if request.data.sampling.prompt_logprobs is not None:
            last = min(end, request.data.num_prompt_tokens - 1)
            wanted += [WantedLogits(i, position, is_sample=False) for position in range(plan.start_positions[i], last)]
        if plan.samples[i]:
            wanted.append(WantedLogits(i, end - 1, is_sample=True))
    return wanted
