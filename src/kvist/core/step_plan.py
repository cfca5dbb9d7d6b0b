"""What one step (one forward pass) has to do, counted in tokens. Written by the scheduler, read by an executor.

A decode is a chunk of size 1, a prefill chunk has size n, a speculative verify has size k: there is no phase.
The plan never carries the value of a token that is still being sampled: the executor keeps each request's
tokens and appends what it samples itself.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from kvist.core.request import RequestId
from kvist.core.sampling_params import SamplingParams


class BlockMoveKind(Enum):
    COPY = "copy"  # within the pool: copy-on-write, a match that ends inside a block


class BlockMove(msgspec.Struct, frozen=True, gc=False):
    """Copy the first `num_tokens` slots of block `source` to block `target`, before the step computes."""

    kind: BlockMoveKind
    source: int
    target: int
    num_tokens: int


class ScheduledRequestData(msgspec.Struct, frozen=True):
    """All an executor must know of a request that it has not seen, or that returns after a preemption.

    token_ids: packed int32, prompt and (after a preemption) output so far.
    """

    request_id: RequestId
    token_ids: bytes
    num_prompt_tokens: int
    sampling: SamplingParams
    sample_index: int
    eos_token_ids: tuple[int, ...]


class TableEdit(msgspec.Struct, frozen=True, gc=False):
    """From entry `first` on, the block table of `request_id` is `block_ids`."""

    request_id: RequestId
    first: int
    block_ids: list[int]


class StepPlan(msgspec.Struct, frozen=True):
    """One step. The four row columns have one entry per scheduled request.

    Order of work: forget `dropped_request_ids`; learn `new_requests`; apply `table_edits`; do `block_moves` one by one;
    compute rows. Row i computes tokens [start_positions[i], start_positions[i] + num_scheduled_tokens[i]) of its
    request, writing their K and V. If samples[i], its last token's logits give the next token, which the executor
    appends to the request.

    A row with drafts ends in them: its chunk is one known token and then the drafts, which the request does not know
    yet. The executor samples at each of these positions as it would one by one, up to and including the first token
    that differs from the draft at its place; what was computed past that counts for nothing.

    num_padding_tokens: tokens computed for nothing by the padded `static` policy, spread over the rows; 0 elsewhere.
    draft_token_ids: by request id, the drafts of rows that come with them.
    num_model_drafts: by request id, how many drafts the executor's own draft model is to propose.
    """

    step_id: int
    request_ids: list[RequestId]
    start_positions: list[int]
    num_scheduled_tokens: list[int]
    samples: list[bool]
    num_total_tokens: int
    new_requests: list[ScheduledRequestData] = []
    table_edits: list[TableEdit] = []
    block_moves: list[BlockMove] = []
    dropped_request_ids: list[RequestId] = []
    num_padding_tokens: int = 0
    draft_token_ids: dict[RequestId, list[int]] = {}
    num_model_drafts: dict[RequestId, int] = {}


def chunk_pairs(num_new_tokens: int, num_context_tokens: int) -> int:
    """Query-key pairs of a causal chunk: each token sees the context, the chunk's tokens before it, and itself."""
    return num_new_tokens * num_context_tokens + num_new_tokens * (num_new_tokens + 1) // 2
