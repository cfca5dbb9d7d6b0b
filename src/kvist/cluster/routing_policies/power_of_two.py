"""Of two replicas drawn at random the less loaded one (Mitzenmacher, 2001).

Almost as even as looking at all, with two looks; and requests that arrive together do not all run to the same replica.
"""

from __future__ import annotations

from kvist.cluster.predictions import PrefillEstimate
from kvist.cluster.routing_policies.random_choice import draw_replica
from kvist.cluster.routing_view import RoutingView, relative_load


def power_of_two(view: RoutingView) -> PrefillEstimate:
    """Draw two, maybe the same twice, and take the shorter queue."""
    pair = draw_replica(view, 0), draw_replica(view, 1)
    return view.local(
        min(pair, key=lambda replica: (relative_load(replica, view.now), replica.decode_tokens, replica.replica_id))
    )
