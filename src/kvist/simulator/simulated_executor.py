"""An executor that computes nothing: it says how long a step takes, makes up tokens and referees the plans.

Tokens are a function of the request's seed, sample index and position alone, so outputs must not depend on batching,
chunking, caching or preemption. Block contents are simulated too: every row must read exactly the tokens that it
believes are there, so a missing copy, a phantom hit or a freed block in use is caught at the step that makes it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvist.core.request import RequestId, unpack_token_ids
from kvist.core.sampling_params import SamplingParams
from kvist.core.step_plan import StepPlan
from kvist.core.step_result import StepResult, TokenLogprobs

StepDuration = Callable[[StepPlan], float]
SampleToken = Callable[[SamplingParams, int, int], int]

HASH_MULTIPLIER = 0x9E3779B97F4A7C15
HASH_MASK = 2**64 - 1


def fixed_duration(step_time_s: float) -> StepDuration:
    """Every step takes the same time."""
    return lambda plan: step_time_s


def linear_duration(*, per_step_s: float, per_token_s: float) -> StepDuration:
    """A step takes a constant and a time per token, padding included."""
    return lambda plan: per_step_s + per_token_s * (plan.num_total_tokens + plan.num_padding_tokens)


def hashed_token(vocab_size: int) -> SampleToken:
    """Return a sampler whose token depends on seed, sample index and position alone."""

    def sample(sampling: SamplingParams, sample_index: int, position: int) -> int:
        mixed = ((sampling.seed or 0) * 1_000_003 + sample_index) * 8_191 + position + 1
        mixed = mixed * HASH_MULTIPLIER & HASH_MASK
        return ((mixed >> 29) ^ mixed) * HASH_MULTIPLIER % 2**64 % vocab_size

    return sample


@dataclass(slots=True)
class _Sequence:
    token_ids: array[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    sample_index: int
    block_ids: list[int] = field(default_factory=list)
    drafts: Sequence[int] = ()  # of this step

    def chunk(self, first: int, last: int) -> list[int]:
        """Tokens in [first, last), drafts included."""
        known = self.token_ids[first:last].tolist()
        num_known = len(self.token_ids)
        return known + list(self.drafts[max(first - num_known, 0) : max(last - num_known, 0)])


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """The handle of a step: how long it takes, and what it will give."""

    duration_s: float
    result: StepResult


class PlanError(AssertionError):
    """A plan breaks the contract between scheduler and executor."""


class SimulatedExecutor:
    """Obeys the Executor contract. With `check_plans` it is a strict referee and raises PlanError.

    draft_acceptance: share of the simulated draft model's tokens that are right.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        duration: StepDuration,
        sample_token: SampleToken | None = None,
        check_plans: bool = True,
        draft_acceptance: float = 0.7,
    ) -> None:
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._duration = duration
        self._sample_token = sample_token or hashed_token(vocab_size=32_000)
        self._check_plans = check_plans
        self._draft_acceptance = draft_acceptance
        self._sequences: dict[RequestId, _Sequence] = {}
        self._contents: dict[int, list[int]] = {}  # block -> tokens whose KV its slots hold, -1 where none

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def num_known_requests(self) -> int:
        return len(self._sequences)

    def begin_step(self, plan: StepPlan) -> SimulatedStep:
        self._learn(plan)
        for request_id, drafts in self._drafts(plan).items():
            self._sequences[request_id].drafts = drafts
        if self._check_plans:
            self._check_shape(plan)
            self._move_blocks(plan)
            self._write_blocks(plan)
        sampled: list[list[int]] = []
        prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
        for row, request_id in enumerate(plan.request_ids):
            sequence = self._sequences[request_id]
            if sequence.sampling.prompt_logprobs is not None:
                prompt_logprobs.update(self._score(sequence, row, plan))
            sampled.append(self._sample(sequence) if plan.samples[row] else [])
        result = StepResult(step_id=plan.step_id, sampled_token_ids=list(sampled), prompt_logprobs=prompt_logprobs)
        return SimulatedStep(self._duration(plan), result)

    def finish_step(self, handle: SimulatedStep) -> StepResult:
        return handle.result

    def close(self) -> None:
        self._sequences.clear()

    def fill(self, block_ids: Sequence[int], token_ids: Sequence[int]) -> None:
        """Put the KV of `token_ids`, from a prompt's start, into these blocks: it came from elsewhere."""
        for index, block_id in enumerate(block_ids):
            self._contents[block_id] = list(token_ids[index * self._block_size : (index + 1) * self._block_size])

    def _learn(self, plan: StepPlan) -> None:
        for request_id in plan.dropped_request_ids:
            self._sequences.pop(request_id, None)
        for new in plan.new_requests:
            if new.request_id in self._sequences:
                raise PlanError(f"{new.request_id} is introduced twice")
            self._sequences[new.request_id] = _Sequence(
                unpack_token_ids(new.token_ids), new.num_prompt_tokens, new.sampling, new.sample_index
            )
        for edit in plan.table_edits:
            block_ids = self._sequences[edit.request_id].block_ids
            if edit.first > len(block_ids):
                raise PlanError(f"the table of {edit.request_id} has a gap before entry {edit.first}")
            block_ids[edit.first :] = edit.block_ids

    def _drafts(self, plan: StepPlan) -> dict[RequestId, Sequence[int]]:
        drafts: dict[RequestId, Sequence[int]] = dict(plan.draft_token_ids)
        for request_id, num_tokens in plan.num_model_drafts.items():
            drafts[request_id] = self._model_drafts(self._sequences[request_id], num_tokens)
        return drafts

    def _model_drafts(self, sequence: _Sequence, num_tokens: int) -> list[int]:
        """The right tokens, but for a share that hashing picks."""
        drafts = []
        for position in range(len(sequence.token_ids), len(sequence.token_ids) + num_tokens):
            token = self._sample_token(sequence.sampling, sequence.sample_index, position)
            luck = (position * HASH_MULTIPLIER & HASH_MASK) / 2**64
            drafts.append(token if luck < self._draft_acceptance else token + 1)
        return drafts

    def _sample(self, sequence: _Sequence) -> list[int]:
        """The tokens up to and including the first that is not the draft at its place."""
        sampled: list[int] = []
        for draft in (*sequence.drafts, None):
            token = self._sample_token(sequence.sampling, sequence.sample_index, len(sequence.token_ids))
            sequence.token_ids.append(token)
            sampled.append(token)
            if token != draft:
                break
        sequence.drafts = ()
        return sampled

    def _check_shape(self, plan: StepPlan) -> None:
        num_rows = len(plan.request_ids)
        if not len(plan.start_positions) == len(plan.num_scheduled_tokens) == len(plan.samples) == num_rows:
            raise PlanError(f"the columns of step {plan.step_id} differ in length")
        if plan.draft_token_ids.keys() & plan.num_model_drafts.keys():
            raise PlanError(f"step {plan.step_id} proposes for one request twice")
        if num_rows == 0 or len(set(plan.request_ids)) != num_rows:
            raise PlanError(f"step {plan.step_id} is empty or has two rows of one request")
        if plan.num_total_tokens != sum(plan.num_scheduled_tokens):
            raise PlanError(f"step {plan.step_id} does not add up to {plan.num_total_tokens} tokens")
        for row, request_id in enumerate(plan.request_ids):
            self._check_row(plan, row, request_id)

    def _check_row(self, plan: StepPlan, row: int, request_id: RequestId) -> None:
        sequence = self._sequences.get(request_id)
        if sequence is None:
            raise PlanError(f"{request_id} was never introduced")
        num_tokens = plan.num_scheduled_tokens[row]
        end = plan.start_positions[row] + num_tokens
        num_drafts = len(sequence.drafts)
        num_known = len(sequence.token_ids) + num_drafts
        if num_tokens < 1 or end > num_known:
            raise PlanError(f"{request_id}: a chunk of {num_tokens} to {end}, of {num_known} tokens")
        if num_drafts and (not plan.samples[row] or num_tokens <= num_drafts):
            raise PlanError(f"{request_id} does not verify its {num_drafts} drafts")
        if plan.samples[row] and end != num_known:
            raise PlanError(f"{request_id} samples before its last token")
        if end > len(sequence.block_ids) * self._block_size:
            raise PlanError(f"{request_id}: {len(sequence.block_ids)} blocks do not cover {end} tokens")
        if len(set(sequence.block_ids)) != len(sequence.block_ids):
            raise PlanError(f"the table of {request_id} names a block twice")
        if not all(0 <= block_id < self._num_blocks for block_id in sequence.block_ids):
            raise PlanError(f"the table of {request_id} names a block outside the pool")

    def _move_blocks(self, plan: StepPlan) -> None:
        for move in plan.block_moves:
            source = self._contents.get(move.source, [])
            self._contents[move.target] = list(source[: move.num_tokens])

    def _write_blocks(self, plan: StepPlan) -> None:
        """Write each row's tokens, then check that the whole prefix of each row is what it should be."""
        block_size = self._block_size
        writers: dict[int, RequestId] = {}
        for row, request_id in enumerate(plan.request_ids):
            sequence = self._sequences[request_id]
            start = plan.start_positions[row]
            end = start + plan.num_scheduled_tokens[row]
            for index in range(start // block_size, -(-end // block_size)):
                block_id = sequence.block_ids[index]
                if writers.setdefault(block_id, request_id) != request_id:
                    raise PlanError(f"block {block_id} is written by {writers[block_id]} and {request_id}")
                first = max(start, index * block_size)
                last = min(end, (index + 1) * block_size)
                slots = self._contents.setdefault(block_id, [])
                slots.extend([-1] * (first - index * block_size - len(slots)))
                slots[first - index * block_size :] = sequence.chunk(first, last)
        for row, request_id in enumerate(plan.request_ids):
            self._check_prefix(request_id, plan.start_positions[row] + plan.num_scheduled_tokens[row])

    def _check_prefix(self, request_id: RequestId, end: int) -> None:
        sequence = self._sequences[request_id]
        for index in range(-(-end // self._block_size)):
            first = index * self._block_size
            expected = sequence.chunk(first, min(end, first + self._block_size))
            if self._contents.get(sequence.block_ids[index], [])[: len(expected)] != expected:
                raise PlanError(f"{request_id} reads wrong KV in block {sequence.block_ids[index]} at token {first}")

    def _score(self, sequence: _Sequence, row: int, plan: StepPlan) -> dict[int, list[TokenLogprobs]]:
        start = plan.start_positions[row]
        end = min(start + plan.num_scheduled_tokens[row], sequence.num_prompt_tokens - 1)
        if end <= start:
            return {}
        following = sequence.token_ids[start + 1 : end + 1]
        return {row: [TokenLogprobs(token, -1.0, 1, [token], [-1.0]) for token in following]}
