"""A loop of a few lines in the scheduler's place: turns prompts into step plans for an executor, as a test asks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kvist.core.request import RequestId, pack_token_ids
from kvist.core.sampling_params import SamplingParams
from kvist.core.step_plan import BlockMove, BlockMoveKind, ScheduledRequestData, StepPlan, TableEdit
from kvist.core.step_result import StepResult, TokenLogprobs

GREEDY = SamplingParams(temperature=0, logprobs=5, max_tokens=None)


@dataclass
class SequenceState:
    """One request as the loop sees it."""

    token_ids: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    blocks: list[int] = field(default_factory=list)
    num_computed: int = 0
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    @property
    def output(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]


class PlanLoop:
    """Requests over one executor. Blocks are handed out in the order of a shuffled free list."""

    def __init__(self, executor, *, block_size: int = 16, shuffle_seed: int | None = None) -> None:
        self.executor = executor
        self.block_size = block_size
        self.free = list(range(executor.num_blocks))
        if shuffle_seed is not None:
            random.Random(shuffle_seed).shuffle(self.free)
        self.requests: dict[RequestId, SequenceState] = {}
        self.new: list[ScheduledRequestData] = []
        self.moves: list[BlockMove] = []
        self.dropped: list[RequestId] = []
        self.edits: list[TableEdit] = []
        self.step_id = 0

    def add(self, request_id: str, prompt: Sequence[int], sampling: SamplingParams = GREEDY, sample_index=0) -> None:
        self.requests[request_id] = SequenceState(list(prompt), len(prompt), sampling)
        self._announce(request_id, sample_index)

    def _announce(self, request_id: str, sample_index: int = 0) -> None:
        request = self.requests[request_id]
        self.new.append(
            ScheduledRequestData(
                request_id,
                pack_token_ids(request.token_ids),
                request.num_prompt_tokens,
                request.sampling,
                sample_index,
                (),
            )
        )

    def preempt(self, request_id: str) -> None:
        """Take the request's blocks away and start it over, output and all."""
        request = self.requests[request_id]
        self.free += request.blocks
        request.blocks, request.num_computed = [], 0
        self.dropped.append(request_id)
        self._announce(request_id)

    def share_prefix(self, source: str, target: str, num_tokens: int) -> None:
        """Give `target` the first tokens of `source`: whole blocks shared, a partial one copied."""
        donor, taker = self.requests[source], self.requests[target]
        whole, rest = divmod(num_tokens, self.block_size)
        taker.blocks = donor.blocks[:whole]
        if rest:
            taker.blocks.append(self.free.pop())
            self.moves.append(BlockMove(BlockMoveKind.COPY, donor.blocks[whole], taker.blocks[-1], rest))
        taker.num_computed = num_tokens
        self.edits.append(TableEdit(target, 0, list(taker.blocks)))

    def step(self, grants: dict[str, int], *, num_padding_tokens: int = 0) -> StepResult:
        """Run one step with these chunk sizes; a chunk that reaches the end of the known tokens samples."""
        starts, samples = [], []
        for request_id, count in grants.items():
            request = self.requests[request_id]
            end = request.num_computed + count
            first = len(request.blocks)
            while len(request.blocks) * self.block_size < end:
                request.blocks.append(self.free.pop())
            if len(request.blocks) > first:
                self.edits.append(TableEdit(request_id, first, request.blocks[first:]))
            starts.append(request.num_computed)
            samples.append(end == len(request.token_ids))
            request.num_computed = end
        plan = StepPlan(
            self.step_id,
            list(grants),
            starts,
            list(grants.values()),
            samples,
            sum(grants.values()) + num_padding_tokens,
            new_requests=self.new,
            table_edits=self.edits,
            block_moves=self.moves,
            dropped_request_ids=self.dropped,
            num_padding_tokens=num_padding_tokens,
        )
        self.new, self.edits, self.moves, self.dropped = [], [], [], []
        self.step_id += 1
        result = self.executor.finish_step(self.executor.begin_step(plan))
        for i, request_id in enumerate(grants):
            request = self.requests[request_id]
            request.token_ids.extend(result.sampled_token_ids[i])
            request.logprobs += result.logprobs.get(i, [])
            request.prompt_logprobs += result.prompt_logprobs.get(i, [])
        return result

    def generate(self, num_tokens: int, *, chunk: int | None = None) -> None:
        """Run all requests until each has `num_tokens` of output, prompts in chunks of `chunk`."""
        while grants := {
            request_id: min(chunk or 1 << 30, len(request.token_ids) - request.num_computed)
            for request_id, request in self.requests.items()
            if len(request.output) < num_tokens
        }:
            self.step(grants)


def one(
    executor, prompt: Sequence[int], num_tokens: int, sampling: SamplingParams = GREEDY, **options
) -> SequenceState:
    """The prompt alone through an executor."""
    loop = PlanLoop(executor, shuffle_seed=options.pop("shuffle_seed", None))
    loop.add("one", prompt, sampling)
    loop.generate(num_tokens, **options)
    return replace(loop.requests["one"])
