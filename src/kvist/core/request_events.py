"""What happens to requests, step by step. Clients, metrics, traces and reports are all derived from these.

The engine emits them in order; the same lists come out of the real engine and of the simulator.
Times are seconds of the driving clock.
"""

from __future__ import annotations

import msgspec

from kvist.core.request import FinishReason, RequestId
from kvist.core.step_result import TokenLogprobs


class Queued(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The scheduler took the request into its queue. ttft_ms, tpot_ms: the latency targets it came with."""

    request_id: RequestId
    time_s: float
    num_prompt_tokens: int
    ttft_ms: float | None = None
    tpot_ms: float | None = None


class Scheduled(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The request entered the running set: for the first time, or again after a preemption.

    num_cached_tokens: tokens whose KV is really read from the cache and not computed, at this admission.
    """

    request_id: RequestId
    time_s: float
    num_cached_tokens: int


class Preempted(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The request lost its blocks and waits to be computed again."""

    request_id: RequestId
    time_s: float
    num_tokens_lost: int


class ChunkCut(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A step took `num_tokens` of the request's prompt, maybe none, though budget and prompt had `num_wanted_tokens`.

    So that the step is over in `step_limit_s`: one of the streams in it is to have a token every `tpot_s`.
    """

    request_id: RequestId
    time_s: float
    num_tokens: int
    num_wanted_tokens: int
    step_limit_s: float
    tpot_s: float


class PromptScored(msgspec.Struct, frozen=True, tag=True):
    """Log-probabilities of the next prompt positions, in order, for a request that asked."""

    request_id: RequestId
    logprobs: list[TokenLogprobs]


class TokensSampled(msgspec.Struct, frozen=True, gc=False, tag=True):
    """New output tokens; a stop token is among them.

    num_draft_tokens: how many were proposed for this step. All but the last of `token_ids` are accepted ones.
    """

    request_id: RequestId
    time_s: float
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    num_draft_tokens: int = 0


class Finished(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The request's last event. stop_token_id: the token that stopped it. error: why, if reason is ERROR."""

    request_id: RequestId
    time_s: float
    reason: FinishReason
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    stop_token_id: int | None = None
    error: str | None = None


RequestEvent = Queued | Scheduled | Preempted | ChunkCut | PromptScored | TokensSampled | Finished


class StepSummary(msgspec.Struct, frozen=True, gc=False):
    """One finished step and the state after it, for metrics, traces and the online step-time model."""

    step_id: int
    time_s: float  # when it finished
    step_time_s: float
    num_scheduled_tokens: int
    num_prefill_tokens: int  # tokens of chunks that do not end in a decode
    num_decode_tokens: int
    num_padding_tokens: int
    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_evictable_blocks: int
    num_total_blocks: int
    num_draft_tokens: int = 0  # proposed tokens that were computed beside the decodes


class EventBatch(msgspec.Struct, frozen=True):
    """All that one turn of the engine loop produced. `step` is None when no step finished in it."""

    time_s: float
    events: list[RequestEvent]
    step: StepSummary | None = None
