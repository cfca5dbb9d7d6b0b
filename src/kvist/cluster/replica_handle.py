"""A replica as the cluster sees it: what it is, and what can be asked of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kvist.core.request import NewRequest, RequestId
from kvist.costmodel.step_time_model import StepTimeModel
from kvist.kvcache.connector import KVSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSpec:
    """What does not change while a replica lives. node: the host that it starts on."""

    replica_id: int
    node: int
    kv_cache_tokens: int
    max_num_batched_tokens: int
    max_num_seqs: int
    num_stages: int
    step_time: StepTimeModel


class ReplicaHandle(Protocol):
    """Where the cluster sends its decisions. Answers come as request events and KV events, by whoever drives it."""

    @property
    def spec(self) -> ReplicaSpec: ...

    def submit(self, new: NewRequest, kv_source: KVSource | None) -> None:
        """Queue a request. kv_source: where its `num_incoming_tokens` are; None if there are none."""
        ...

    def abort(self, request_id: RequestId) -> None:
        """End the request there, wherever it is."""
        ...

    def release_lease(self, request_id: RequestId) -> None:
        """The blocks that the ended request held for a reader are not needed any more."""
        ...
