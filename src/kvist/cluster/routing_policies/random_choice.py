"""Any replica, with a probability as its weight: the baseline that knows nothing.

The draw is a counter-based random number of (seed, number of the request), so it repeats on every host.
"""

from __future__ import annotations

from itertools import accumulate

from kvist.cluster.cluster_state import ReplicaState
from kvist.cluster.predictions import PrefillEstimate
from kvist.cluster.routing_view import RoutingView
from kvist.core.random_numbers import uniform


def random_choice(view: RoutingView) -> PrefillEstimate:
    """Draw one replica."""
    return view.local(draw_replica(view, 0))


def draw_replica(view: RoutingView, draw_number: int) -> ReplicaState:
    """The `draw_number`-th of the request's independent draws."""
    sums = list(accumulate(replica.prefill_weight or 1.0 for replica in view.candidates))
    point = uniform(view.seed, draw_number, view.number) * sums[-1]
    return next(
        (replica for replica, total in zip(view.candidates, sums, strict=True) if point < total), view.candidates[-1]
    )
