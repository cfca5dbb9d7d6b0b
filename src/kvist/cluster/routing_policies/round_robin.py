"""Replicas in turn, each as often as its weight says.

The next is who has had the fewest requests for its weight, so a replica that comes or goes needs no special care.
"""

from __future__ import annotations

from kvist.cluster.predictions import PrefillEstimate
from kvist.cluster.routing_view import RoutingView


def round_robin(view: RoutingView) -> PrefillEstimate:
    """Choose who is furthest behind its share."""
    return view.local(
        min(
            view.candidates,
            key=lambda replica: (replica.num_routed / (replica.prefill_weight or 1.0), replica.replica_id),
        )
    )
