"""The replica with the least prefill work queued, in seconds: load balancing that is blind to caches."""

from __future__ import annotations

from kvist.cluster.predictions import PrefillEstimate
from kvist.cluster.routing_view import RoutingView, relative_load


def least_loaded(view: RoutingView) -> PrefillEstimate:
    """Choose the shortest queue; of equal ones, who decodes least, then the lowest number."""
    return view.local(
        min(
            view.candidates,
            key=lambda replica: (relative_load(replica, view.now), replica.decode_tokens, replica.replica_id),
        )
    )
