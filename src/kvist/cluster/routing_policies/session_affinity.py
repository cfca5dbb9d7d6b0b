"""A session stays where it was while that pays: its history is cached there.

It pays as long as staying does not cost more time to the first token than moving to the best other replica: what sticks
is the cache, not the name. New sessions go to the shortest queue.
"""

from __future__ import annotations

from kvist.cluster.predictions import PrefillEstimate
from kvist.cluster.routing_policies.least_loaded import least_loaded
from kvist.cluster.routing_view import RoutingView


def session_affinity(view: RoutingView) -> PrefillEstimate:
    """Stay with the session's replica unless the shortest queue is sooner even with everything to compute."""
    other = least_loaded(view)
    home = view.state.session_replica(view.request.session_id)
    at_home = next((replica for replica in view.candidates if replica.replica_id == home), None)
    if at_home is None:
        return other
    stay = view.local(at_home)
    return stay if stay.ttft_s <= other.ttft_s else other
