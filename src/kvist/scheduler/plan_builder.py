"""Collects one step's rows, block edits and new requests into a StepPlan, and remembers its rows until the result."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from kvist.core.draft import Draft
from kvist.core.request import RequestId
from kvist.core.step_plan import BlockMove, ScheduledRequestData, StepPlan, TableEdit
from kvist.costmodel.step_work import StepWork, work_of_plan
from kvist.kvcache.kv_cache import TableGrowth
from kvist.scheduler.tracked_request import TrackedRequest


@dataclass(slots=True, eq=False)
class PlannedStep:
    """A step whose result is awaited. Rows: first the decodes, then the chunks.

    num_drafts: drafts of the decodes that have any. stale: requests that finished or lost their blocks since; what the
    step computes for them is discarded.
    """

    plan: StepPlan
    work: StepWork
    decodes: list[TrackedRequest]
    chunks: list[TrackedRequest]
    num_prefill_tokens: int
    num_started: int
    num_started_tokens: int
    num_drafts: dict[RequestId, int] = field(default_factory=dict)
    stale: set[TrackedRequest] = field(default_factory=set)


class PlanBuilder:
    """Builds one plan. Rows are added after their blocks are allocated."""

    def __init__(self, step_id: int) -> None:
        self._step_id = step_id
        self._decodes: list[TrackedRequest] = []
        self._positions: list[int] = []
        self._chunks: list[TrackedRequest] = []
        self._chunk_starts: list[int] = []
        self._chunk_sizes: list[int] = []
        self._chunk_samples: list[bool] = []
        self._new_requests: list[ScheduledRequestData] = []
        self._table_edits: list[TableEdit] = []
        self._block_moves: list[BlockMove] = []
        self._num_started = 0
        self._num_started_tokens = 0
        self._drafts: dict[RequestId, Draft] = {}

    @property
    def is_empty(self) -> bool:
        return not self._decodes and not self._chunks

    @property
    def decodes(self) -> Sequence[TrackedRequest]:
        return self._decodes

    @property
    def mean_decode_context(self) -> int:
        """Tokens before a decode's, on average."""
        return sum(self._positions) // max(len(self._positions), 1)

    @property
    def num_tokens(self) -> int:
        """Tokens planned so far, without drafts and padding."""
        return len(self._decodes) + sum(self._chunk_sizes)

    def add_growth(self, request_id: RequestId, growth: TableGrowth) -> None:
        self._table_edits.append(TableEdit(request_id, growth.first, growth.block_ids))
        self._block_moves += growth.moves

    def add_start(self, request: TrackedRequest, moves: list[BlockMove]) -> None:
        """Introduce `request`, with all its tokens and blocks, to the executor."""
        assert request.table is not None
        self._new_requests.append(_introduction(request))
        self._num_started += 1
        self._table_edits.append(TableEdit(request.id, 0, list(request.table.block_ids)))
        self._block_moves += moves
        self._num_started_tokens += request.num_tokens - request.num_computed_tokens

    def add_joined(self, requests: Collection[TrackedRequest]) -> None:
        """Introduce running requests whose KV came from elsewhere, before all edits of their tables."""
        edits = [TableEdit(request.id, 0, list(request.table.block_ids)) for request in requests if request.table]
        self._new_requests += [_introduction(request) for request in requests]
        self._table_edits[:0] = edits

    def set_decodes(self, decodes: list[TrackedRequest], positions: list[int]) -> None:
        """One token for each of `decodes`, at `positions`; each samples the next."""
        self._decodes = decodes
        self._positions = positions
        for request in decodes:
            request.num_in_flight_tokens += 1
            request.num_in_flight_samples += 1

    def add_chunk(self, request: TrackedRequest, num_tokens: int) -> bool:
        """Add `num_tokens` known tokens of `request`. Returns whether that was the last of them."""
        num_left = request.num_unscheduled_tokens
        num_tokens = min(num_tokens, num_left)
        samples = num_tokens == num_left and request.num_remaining_tokens > 0
        self._chunks.append(request)
        self._chunk_starts.append(request.num_computed_tokens + request.num_in_flight_tokens)
        self._chunk_sizes.append(num_tokens)
        self._chunk_samples.append(samples)
        request.num_in_flight_tokens += num_tokens
        request.num_in_flight_samples += samples
        return num_tokens == num_left

    def add_draft(self, request: TrackedRequest, draft: Draft) -> None:
        """Let the decode of `request`, which has blocks for it, verify `draft`.

        In flight counts only what is certain: one token to compute, one to come.
        """
        self._drafts[request.id] = draft

    def build(self, *, dropped_request_ids: list[RequestId], num_padding_tokens: int) -> PlannedStep:
        num_decodes = len(self._decodes)
        num_prefill_tokens = sum(self._chunk_sizes)
        num_drafts = {id_: draft.num_tokens for id_, draft in self._drafts.items()}
        plan = StepPlan(
            step_id=self._step_id,
            request_ids=[request.id for request in self._decodes] + [request.id for request in self._chunks],
            start_positions=self._positions + self._chunk_starts,
            num_scheduled_tokens=self._decode_sizes() + self._chunk_sizes,
            samples=[True] * num_decodes + self._chunk_samples,
            num_total_tokens=num_decodes + num_prefill_tokens + sum(num_drafts.values()),
            new_requests=self._new_requests,
            table_edits=self._table_edits,
            block_moves=self._block_moves,
            dropped_request_ids=dropped_request_ids,
            num_padding_tokens=num_padding_tokens,
            draft_token_ids={
                id_: list(draft.token_ids) for id_, draft in self._drafts.items() if draft.token_ids is not None
            },
            num_model_drafts={id_: draft.num_tokens for id_, draft in self._drafts.items() if draft.token_ids is None},
        )
        return PlannedStep(
            plan=plan,
            work=self.work() if not (self._drafts or num_padding_tokens) else work_of_plan(plan),
            decodes=self._decodes,
            chunks=self._chunks,
            num_prefill_tokens=num_prefill_tokens,
            num_started=self._num_started,
            num_started_tokens=self._num_started_tokens,
            num_drafts=num_drafts,
        )

    def work(self) -> StepWork:
        """As `work_of_plan` of what was added so far, drafts apart, without a look at each row: most are decodes."""
        num_decodes = len(self._decodes)
        chunks = StepWork.of(
            zip(self._chunk_sizes, self._chunk_starts, strict=True), num_sampled=sum(self._chunk_samples)
        )
        return StepWork(
            num_tokens=num_decodes + chunks.num_tokens,
            num_sequences=num_decodes + chunks.num_sequences,
            num_sampled=num_decodes + chunks.num_sampled,
            decode_context_tokens=num_decodes + sum(self._positions) + chunks.decode_context_tokens,
            prefill_pairs=chunks.prefill_pairs,
            prefill_context_tokens=chunks.prefill_context_tokens,
        )

    def _decode_sizes(self) -> list[int]:
        if not self._drafts:
            return [1] * len(self._decodes)
        drafts = self._drafts
        return [1 + drafts[request.id].num_tokens if request.id in drafts else 1 for request in self._decodes]


def _introduction(request: TrackedRequest) -> ScheduledRequestData:
    new = request.new
    return ScheduledRequestData(
        request_id=request.id,
        token_ids=request.token_ids.tobytes(),
        num_prompt_tokens=request.num_prompt_tokens,
        sampling=new.sampling,
        sample_index=new.sample_index,
        eos_token_ids=new.eos_token_ids,
    )
