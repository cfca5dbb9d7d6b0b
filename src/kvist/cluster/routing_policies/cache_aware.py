"""The replica that has the first token soonest, by its queue and by what its own cache holds of the prompt.

Mooncake's "local cache-aware" scheduling: hits and load are weighed in the same unit, seconds, so a hot prefix draws
requests only until the queue in front of it costs more than computing the prefix elsewhere would. That other
computation leaves a second copy, so a hot prefix spreads by itself.
"""

from __future__ import annotations

from kvist.cluster.predictions import PrefillEstimate
from kvist.cluster.routing_view import RoutingView


def cache_aware(view: RoutingView) -> PrefillEstimate:
    """Choose the lowest predicted time to first token without moving any KV."""
    return min(map(view.local, view.candidates), key=lambda estimate: (estimate.ttft_s, estimate.replica_id))
