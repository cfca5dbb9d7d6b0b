"""Remembers what happened to the latest requests, so that one can be explained. Bounded; fed with events only."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvist.core.request import FinishReason, RequestId
from kvist.core.request_events import (
    ChunkCut,
    EventBatch,
    Finished,
    Preempted,
    Queued,
    RequestEvent,
    Scheduled,
    TokensSampled,
)

MAX_TIMELINES = 1000
MAX_MOMENTS = 64  # of one request: a thrashing one would otherwise grow without bound


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened to a request, `at_s` after it was queued. num_tokens: what it was about, if anything."""

    at_s: float
    what: str
    num_tokens: int | None = None


@dataclass(slots=True, eq=False)
class Timeline:
    """One request from queue to finish."""

    request_id: RequestId
    queued_s: float
    num_prompt_tokens: int
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0  # of the drafted ones
    num_preemptions: int = 0
    num_cut_chunks: int = 0  # steps that took less of its prompt than they could, for the sake of streams
    last_cut: ChunkCut | None = None
    first_scheduled_at_s: float | None = None
    first_token_at_s: float | None = None
    last_token_at_s: float | None = None
    finished_at_s: float | None = None
    finish_reason: FinishReason | None = None
    error: str | None = None
    moments: list[Moment] = field(default_factory=list)

    def add(self, time_s: float, what: str, num_tokens: int | None = None) -> None:
        if len(self.moments) < MAX_MOMENTS:
            self.moments.append(Moment(time_s - self.queued_s, what, num_tokens))


class Timelines:
    """The latest MAX_TIMELINES requests. Never raises into whoever feeds it."""

    def __init__(self, max_timelines: int = MAX_TIMELINES) -> None:
        self._max_timelines = max_timelines
        self._timelines: OrderedDict[RequestId, Timeline] = OrderedDict()

    def all(self) -> Iterable[Timeline]:
        """Oldest first."""
        return self._timelines.values()

    def record(self, batch: EventBatch) -> None:
        """Take in one batch; events of requests that are not known (any more) are passed over."""
        for event in batch.events:
            if isinstance(event, Queued):
                self._open(event)
                continue
            timeline = self._timelines.get(event.request_id)
            if timeline is not None:
                _extend(timeline, event)

    def _open(self, event: Queued) -> None:
        timeline = Timeline(event.request_id, event.time_s, event.num_prompt_tokens)
        timeline.add(event.time_s, "queued", event.num_prompt_tokens)
        self._timelines[event.request_id] = timeline
        if len(self._timelines) > self._max_timelines:
            self._timelines.popitem(last=False)


def _extend(timeline: Timeline, event: RequestEvent) -> None:
    if isinstance(event, TokensSampled):
        _extend_tokens(timeline, event)
    elif isinstance(event, Scheduled):
        if timeline.first_scheduled_at_s is None:
            timeline.first_scheduled_at_s = event.time_s - timeline.queued_s
            timeline.num_cached_tokens = event.num_cached_tokens
        timeline.add(event.time_s, "scheduled", event.num_cached_tokens)
    elif isinstance(event, ChunkCut):
        timeline.num_cut_chunks += 1
        timeline.last_cut = event
        if timeline.num_cut_chunks == 1:
            timeline.add(event.time_s, "first chunk cut", event.num_tokens)
    elif isinstance(event, Preempted):
        timeline.num_preemptions += 1
        timeline.add(event.time_s, "preempted", event.num_tokens_lost)
    elif isinstance(event, Finished):
        timeline.finished_at_s = event.time_s - timeline.queued_s
        timeline.finish_reason, timeline.error = event.reason, event.error
        timeline.add(event.time_s, "finished", event.num_output_tokens)


def _extend_tokens(timeline: Timeline, event: TokensSampled) -> None:
    if timeline.first_token_at_s is None:
        timeline.first_token_at_s = event.time_s - timeline.queued_s
        timeline.add(event.time_s, "first token")
    timeline.last_token_at_s = event.time_s - timeline.queued_s
    timeline.num_output_tokens += len(event.token_ids)
    if event.num_draft_tokens:
        timeline.num_draft_tokens += event.num_draft_tokens
        timeline.num_accepted_tokens += len(event.token_ids) - 1
