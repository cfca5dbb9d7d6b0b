"""One finished step in numbers: what traces, reports and utilization are made of. The same in real and virtual time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kvist.core.request import RequestId
from kvist.core.request_events import EventBatch, Scheduled
from kvist.core.step_plan import StepPlan, chunk_pairs

STEP_KINDS = ("prefill", "decode", "mixed", "empty")


class StepPart(msgspec.Struct, frozen=True, gc=False):
    """One request's chunk in a step. num_cached_tokens: read from the cache, if it was admitted in this step."""

    request_id: RequestId
    num_new_tokens: int
    num_context_tokens: int  # tokens before the chunk, whose K and V it reads
    num_cached_tokens: int = 0


class OperationTime(msgspec.Struct, frozen=True, gc=False):
    """An operation of the executor's plan, and how long it took in this step."""

    name: str
    duration_s: float


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Counts as in StepSummary and in costmodel's StepWork; times are seconds of the driving clock.

    num_cached_tokens: tokens that requests admitted with this step read from the cache instead of computing them.
    num_cached_blocks: blocks that only the cache holds; with used and free ones they are all blocks.
    parts: chunks that are not decodes, in the plan's order. operations: in the plan's order, if they were timed.
    """

    step_id: int
    start_s: float
    duration_s: float
    num_decode_tokens: int
    num_prefill_tokens: int
    num_cached_tokens: int = 0
    num_draft_tokens: int = 0
    num_padding_tokens: int = 0
    num_sequences: int = 0
    num_sampled: int = 0
    decode_context_tokens: int = 0
    prefill_pairs: int = 0
    prefill_context_tokens: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_used_blocks: int = 0
    num_free_blocks: int = 0
    num_cached_blocks: int = 0
    parts: Sequence[StepPart] = ()
    operations: Sequence[OperationTime] = ()

    @property
    def end_s(self) -> float:
        return self.start_s + self.duration_s

    @property
    def num_tokens(self) -> int:
        """All tokens computed: decodes, drafts, prefill and padding."""
        return self.num_decode_tokens + self.num_draft_tokens + self.num_prefill_tokens + self.num_padding_tokens

    @property
    def kind(self) -> str:
        """One of STEP_KINDS: whether it computes prompts, decodes, or both."""
        return step_kind(self.num_decode_tokens, self.num_prefill_tokens)


def step_kind(num_decode_tokens: int, num_prefill_tokens: int) -> str:
    if num_prefill_tokens:
        return "mixed" if num_decode_tokens else "prefill"
    return "decode" if num_decode_tokens else "empty"


def step_record(plan: StepPlan, batch: EventBatch, operations: Sequence[OperationTime] = ()) -> StepRecord | None:
    """The record of `plan`, whose end brought `batch`; None if the step failed."""
    summary = batch.step
    if summary is None:
        return None
    cached = {event.request_id: event.num_cached_tokens for event in batch.events if isinstance(event, Scheduled)}
    # A plan's rows are decodes, then chunks. A decode that verifies drafts is a longer chunk, as in StepWork.
    num_decodes = summary.num_decode_tokens
    num_singles = 0 if summary.num_draft_tokens else num_decodes
    positions, sizes = plan.start_positions, plan.num_scheduled_tokens
    decode_context_tokens = sum(positions[:num_singles]) + num_singles
    prefill_pairs = prefill_context_tokens = 0
    for row in range(num_singles, len(sizes)):
        size, position = sizes[row], positions[row]
        if size == 1:
            decode_context_tokens += position + 1
        else:
            prefill_pairs += chunk_pairs(size, position)
            prefill_context_tokens += position + size
    return StepRecord(
        step_id=plan.step_id,
        start_s=summary.time_s - summary.step_time_s,
        duration_s=summary.step_time_s,
        num_decode_tokens=num_decodes,
        num_prefill_tokens=summary.num_prefill_tokens,
        num_cached_tokens=sum(cached.values()),
        num_draft_tokens=summary.num_draft_tokens,
        num_padding_tokens=summary.num_padding_tokens,
        num_sequences=len(sizes),
        num_sampled=sum(plan.samples) + summary.num_draft_tokens,
        decode_context_tokens=decode_context_tokens,
        prefill_pairs=prefill_pairs,
        prefill_context_tokens=prefill_context_tokens,
        num_running=summary.num_running,
        num_waiting=summary.num_waiting,
        num_used_blocks=summary.num_total_blocks - summary.num_free_blocks - summary.num_evictable_blocks,
        num_free_blocks=summary.num_free_blocks,
        num_cached_blocks=summary.num_evictable_blocks,
        parts=_parts(plan, num_decodes, cached),
        operations=operations,
    )


def _parts(plan: StepPlan, num_decodes: int, cached: Mapping[RequestId, int]) -> list[StepPart]:
    ids = plan.request_ids
    return [
        StepPart(ids[row], plan.num_scheduled_tokens[row], plan.start_positions[row], cached.get(ids[row], 0))
        for row in range(num_decodes, len(ids))
    ]
