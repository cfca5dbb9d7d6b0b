"""What a routing policy sees and returns. A policy chooses who computes the prompt; the rest follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvist.cluster.cluster_request import ClusterRequest
from kvist.cluster.cluster_state import ClusterState, ReplicaState
from kvist.cluster.predictions import PrefillEstimate


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingView:
    """Nothing in it may be changed.

    candidates: live replicas that take prompts, by number; at least one.
    local: the request's way on a replica with what that replica holds. best: also with KV from elsewhere, if that pays.
    number: requests placed before this one, so that draws differ from each other and repeat from run to run.
    """

    request: ClusterRequest
    state: ClusterState
    candidates: Sequence[ReplicaState]
    local: Callable[[ReplicaState], PrefillEstimate]
    best: Callable[[ReplicaState], PrefillEstimate]
    now: float
    number: int
    seed: int


RoutingPolicy = Callable[[RoutingView], PrefillEstimate]


def relative_load(replica: ReplicaState, now: float) -> float:
    """Queued prefill time, divided by the share of the prompts that the replica is to get."""
    return replica.queue_s(now) / (replica.prefill_weight or 1.0)
