"""The one way to talk to an engine, whether it runs in a thread of this process or in a process of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Protocol

import msgspec

from kvist.core.request import FinishReason, NewRequest, RequestId
from kvist.core.request_events import EventBatch, RequestEvent


class EngineStatus(msgspec.Struct, frozen=True):
    """How the engine is. Liveness is the age of the step loop's last heartbeat; busy is not dead."""

    state: str  # "starting", "ready", "draining", "dead"
    heartbeat_age_s: float
    num_running: int
    num_waiting: int
    num_waiting_tokens: int
    num_total_blocks: int
    num_free_blocks: int
    num_evictable_blocks: int
    num_restarts: int = 0
    reason: str | None = None  # why it is not ready


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine turned out to be, known once it is ready.

    start_phases_s: seconds that each phase of the start took, in order.
    """

    max_model_len: int
    vocab_size: int
    block_size: int
    num_blocks: int
    token_budget: int
    max_num_seqs: int
    kv_cache_bytes: int
    weight_bytes: int
    workspace_bytes: int
    start_phases_s: dict[str, float]


class EngineClient(Protocol):
    """Submits requests and yields their events. All methods run on the caller's asyncio loop."""

    async def start(self) -> None:
        """Start the engine and wait until it is ready. Raises what the engine raised while starting."""
        ...

    @property
    def info(self) -> EngineInfo:
        """Raises EngineUnavailableError before the first start has succeeded."""
        ...

    def submit(self, request: NewRequest) -> AsyncGenerator[list[RequestEvent], None]:
        """Queue `request`; yield its events in order, the last one `Finished`.

        Closing the iterator early aborts the request. A request id must not have been used before with this client:
        events of an aborted request may still be on their way. Raises QueueFullError, InvalidRequestError,
        RequestTooLongError or EngineUnavailableError at the first step of the iteration.
        If the engine dies, yields `Finished` with reason ERROR.
        """
        ...

    async def abort(self, request_id: RequestId, *, reason: FinishReason = FinishReason.ABORT) -> None:
        """Stop the request and free its blocks. No effect if it is unknown or finished.

        reason: what `Finished` says; STOP when the caller found a stop string, so that it counts as complete.
        """
        ...

    def status(self) -> EngineStatus: ...

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes that no request holds. Returns whether the cache is then empty."""
        ...

    async def start_profile(self) -> str:
        """Begin the step trace and return its file. Raises InvalidRequestError if no file is configured."""
        ...

    async def stop_profile(self) -> str:
        """End the step trace and return its file. Raises InvalidRequestError if none is being written."""
        ...

    def add_listener(self, listener: Callable[[EventBatch], None]) -> None:
        """Call `listener` with every batch of events (metrics, traces). It must not raise or block."""
        ...

    async def close(self, *, drain_s: float) -> None:
        """Refuse new requests, let running ones finish for at most `drain_s`, abort the rest, stop the engine."""
        ...
