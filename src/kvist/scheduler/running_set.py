"""The running requests, by what they need next. The scheduler is its only writer."""

from __future__ import annotations

from kvist.core.request import RequestId
from kvist.scheduler.tracked_request import TrackedRequest


class RunningSet:
    """Requests that hold blocks, in order of admission.

    decoding: one token to schedule. prefilling: more of the known tokens to schedule. Those in neither list have
    everything scheduled and await the result of an open step.
    """

    def __init__(self) -> None:
        self.by_id: dict[RequestId, TrackedRequest] = {}
        self.decoding: list[TrackedRequest] = []
        self.prefilling: list[TrackedRequest] = []
        self.num_admitted_since_idle = 0

    def __len__(self) -> int:
        return len(self.by_id)

    def add(self, request: TrackedRequest) -> None:
        self.by_id[request.id] = request
        self.prefilling.append(request)
        self.num_admitted_since_idle += 1

    def join(self, request: TrackedRequest) -> None:
        """Add one whose KV came from elsewhere: it decodes at once if that was all of its known tokens but one."""
        self.by_id[request.id] = request
        (self.decoding if request.num_unscheduled_tokens == 1 else self.prefilling).append(request)
        self.num_admitted_since_idle += 1

    def remove(self, request: TrackedRequest) -> None:
        del self.by_id[request.id]
        if request in self.decoding:
            self.decoding.remove(request)
        elif request in self.prefilling:
            self.prefilling.remove(request)
        if not self.by_id:
            self.num_admitted_since_idle = 0

    def end_prefill(self, request: TrackedRequest) -> None:
        """All known tokens of `request` are scheduled: it decodes, unless its last token is on the way."""
        self.prefilling.remove(request)
        if len(request.token_ids) + request.num_in_flight_samples < request.max_total_tokens:
            self.decoding.append(request)

    def end_decode(self, request: TrackedRequest) -> None:
        """The last token of `request` is on the way."""
        self.decoding.remove(request)
