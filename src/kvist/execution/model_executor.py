"""Runs step plans: keeps each request's tokens and block table, has rows computed, samples, scores prompts."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvist.core.random_numbers import seed_for
from kvist.core.request import RequestId, unpack_token_ids
from kvist.core.step_plan import StepPlan
from kvist.core.step_result import StepResult, TokenLogprobs
from kvist.execution.draft_model import DraftModel
from kvist.execution.logits import LogitRow, Logits
from kvist.execution.request_tokens import RequestTokens
from kvist.execution.runner import Runner, TakeLogits
from kvist.execution.sampler import Sampler, takes_best
from kvist.execution.step_batch import Chunk, StepBatch, build_batch
from kvist.metrics.step_record import OperationTime


class WantedLogits(msgspec.Struct, frozen=True, gc=False):
    """One row of logits to compute: for the plan row's next token, or to score the prompt token after `position`.

    num_drafts_before: of the row's drafts, how many stand up to and at `position`.
    """

    plan_row: int
    position: int
    is_sample: bool
    num_drafts_before: int = 0


class ModelExecutor:
    """Implements engine.executor.Executor over a Runner. Computes a step when it is begun.

    Drafts are verified by sampling after each of them as if it were known, and keeping what was sampled up to the first
    token that is not the draft in its place. So each token is the one that would have been sampled without drafts.
    """

    def __init__(
        self, runner: Runner, sampler: Sampler, *, engine_seed: int, draft_model: DraftModel | None = None
    ) -> None:
        self._runner = runner
        self._draft_model = draft_model
        self._sampler = sampler
        self._engine_seed = engine_seed
        self._requests: dict[RequestId, RequestTokens] = {}
        self._is_next_timed = False
        self._operation_times: list[OperationTime] = []

    @property
    def num_blocks(self) -> int:
        return self._runner.num_blocks

    @property
    def description(self) -> str:
        """All that the speed of a step depends on besides the model."""
        return self._runner.description

    @property
    def weight_bytes(self) -> int:
        return sum(runner.weight_bytes for runner in self._runners)

    @property
    def workspace_bytes(self) -> int | None:
        sizes = [runner.workspace_bytes for runner in self._runners]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None

    @property
    def _runners(self) -> list[Runner]:
        return [self._runner] if self._draft_model is None else [self._runner, self._draft_model.runner]

    def resize(self, max_num_tokens: int) -> None:
        """Make ready for steps of up to `max_num_tokens` tokens, padding included. Between steps only."""
        self._runner.resize(max_num_tokens)
        if self._draft_model is not None:
            self._draft_model.resize(max_num_tokens)

    def preallocate(self) -> None:
        """Begin to take the KV pools' memory from the system. Raises ConfigError if it is not to be had."""
        for runner in self._runners:
            runner.preallocate()

    def begin_step(self, plan: StepPlan) -> StepResult:
        """Compute the step. Raises ValueError if it wants drafts of a draft model and there is none."""
        if plan.num_model_drafts and self._draft_model is None:
            raise ValueError("this executor has no draft model")
        self._apply_changes(plan)
        result = StepResult(step_id=plan.step_id, sampled_token_ids=[() for _ in plan.request_ids])
        if plan.request_ids:
            self._compute(plan, result)
        return result

    def finish_step(self, handle: StepResult) -> StepResult:
        return handle

    def time_next_step(self) -> None:
        """Time each operation of the next step's model, not of a draft model."""
        self._is_next_timed = True

    def take_operation_times(self) -> list[OperationTime]:
        """The times of the last step so timed, in the plan's order, once; nothing if the runner cannot time."""
        times, self._operation_times = self._operation_times, []
        return times

    def close(self) -> None:
        self._requests.clear()
        self._runner.close()
        if self._draft_model is not None:
            self._draft_model.close()

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
            if self._draft_model is not None:
                self._draft_model.move(plan.block_moves)

    def _compute(self, plan: StepPlan, result: StepResult) -> None:
        requests = [self._requests[request_id] for request_id in plan.request_ids]
        nums_known = [len(request.token_ids) for request in requests]
        self._append_drafts(plan, requests)
        nums_drafts = [len(request.token_ids) - known for request, known in zip(requests, nums_known, strict=True)]
        batch = self._build_batch(plan, requests)
        wanted = list_wanted_logits(batch.chunks, plan.samples, requests, nums_drafts)
        first_rows = [chunk.first_row - chunk.start for chunk in batch.chunks]
        logit_rows = np.array([first_rows[item.plan_row] + item.position for item in wanted], np.int64)

        def take_logits(indices: range, logits: Logits) -> None:
            self._take_logits(wanted[indices.start : indices.stop], logits, requests, result)

        if self._is_next_timed:
            finite_rows = self._run_timed(batch, logit_rows, take_logits)
        else:
            finite_rows = self._runner.run(batch, logit_rows, take_logits)
        if not finite_rows.all():
            for i, chunk in enumerate(batch.chunks):
                rows = chunk.rows
                if nums_drafts[i]:  # what follows a refused draft does not matter
                    rows = slice(rows.start, rows.start + max(len(result.sampled_token_ids[i]), 1))
                if not finite_rows[rows].all():
                    message = "the model computed numbers that are not finite for this request"
                    self._fail(result, i, requests[i], message)
        for request, known, sampled in zip(requests, nums_known, result.sampled_token_ids, strict=True):
            del request.token_ids[known:]
            request.token_ids.extend(sampled)

    def _run_timed(self, batch: StepBatch, logit_rows: NDArray[np.int64], take_logits: TakeLogits) -> NDArray[np.bool_]:
        self._is_next_timed = False
        before = self._runner.timings()
        finite_rows = self._runner.run(batch, logit_rows, take_logits, timed=True)
        self._operation_times = [
            OperationTime(name, seconds - seconds_before)
            for (name, seconds), (_, seconds_before) in zip(self._runner.timings(), before, strict=True)
        ]
        return finite_rows

    def _append_drafts(self, plan: StepPlan, requests: Sequence[RequestTokens]) -> None:
        """Let the drafts stand after the tokens of their requests until the step is computed."""
        for request_id, token_ids in plan.draft_token_ids.items():
            self._requests[request_id].token_ids.extend(token_ids)
        if self._draft_model is not None:
            self._draft_model.note_rows(plan, requests)
            self._draft_model.propose(plan, requests)

    def _build_batch(self, plan: StepPlan, requests: Sequence[RequestTokens]) -> StepBatch:
        rows = []
        for request, start, count in zip(requests, plan.start_positions, plan.num_scheduled_tokens, strict=True):
            token_ids = request.token_ids[start : start + count]
            num_missing = count - len(token_ids)  # drafts that the draft model did not make
            assert token_ids, "the plan schedules tokens that nobody knows yet"
            assert not num_missing or request.data.request_id in plan.num_model_drafts, "a plan ahead of its tokens"
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
            elif item.num_drafts_before and not _is_reached(item, request, result):
                continue
            elif takes_best(request.data.sampling, item.position + 1 - request.data.num_prompt_tokens):
                result.sampled_token_ids[plan_row] = (*result.sampled_token_ids[plan_row], best[i])
            else:
                self._sample(logits[i], item, request, result)

    def _sample(self, logits: LogitRow, item: WantedLogits, request: RequestTokens, result: StepResult) -> None:
        with np.errstate(all="ignore"):  # temperatures may overflow logits, which the sampler looks for
            sampled = self._sampler.sample(logits, request.row(item.position + 1))
        if sampled.token_id is None:
            self._fail(result, item.plan_row, request, sampled.error or "")
            return
        result.sampled_token_ids[item.plan_row] = (*result.sampled_token_ids[item.plan_row], sampled.token_id)
        if sampled.logprobs is not None:
            result.logprobs.setdefault(item.plan_row, []).append(sampled.logprobs)

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


def _is_reached(item: WantedLogits, request: RequestTokens, result: StepResult) -> bool:
    """Whether all drafts up to this place are what was sampled there."""
    sampled = result.sampled_token_ids[item.plan_row]
    return len(sampled) == item.num_drafts_before and sampled[-1] == request.token_ids[item.position]


def list_wanted_logits(
    chunks: Sequence[Chunk], samples: Sequence[bool], requests: Sequence[RequestTokens], nums_drafts: Sequence[int]
) -> list[WantedLogits]:
    """Rows of logits that the step's result needs, row by row, prompt positions in order before the samples."""
    wanted = []
    for i, (chunk, request) in enumerate(zip(chunks, requests, strict=True)):
        end = chunk.end
        if request.data.sampling.prompt_logprobs is not None:
            last = min(end, request.data.num_prompt_tokens - 1)
            wanted += [WantedLogits(i, position, is_sample=False) for position in range(chunk.start, last)]
        if samples[i]:
            num_drafts = nums_drafts[i]
            wanted.append(WantedLogits(i, end - 1 - num_drafts, is_sample=True))
            for j in range(1, num_drafts + 1):
                wanted.append(WantedLogits(i, end - 1 - num_drafts + j, is_sample=True, num_drafts_before=j))
    return wanted
