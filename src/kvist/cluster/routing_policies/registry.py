"""The routing policies by their configured name."""

from __future__ import annotations

from collections.abc import Mapping

from kvist.cluster.routing_policies.cache_aware import cache_aware
from kvist.cluster.routing_policies.kv_centric import kv_centric
from kvist.cluster.routing_policies.least_loaded import least_loaded
from kvist.cluster.routing_policies.power_of_two import power_of_two
from kvist.cluster.routing_policies.random_choice import random_choice
from kvist.cluster.routing_policies.round_robin import round_robin
from kvist.cluster.routing_policies.session_affinity import session_affinity
from kvist.cluster.routing_view import RoutingPolicy

ROUTING_POLICIES: Mapping[str, RoutingPolicy] = {
    "random": random_choice,
    "round_robin": round_robin,
    "least_loaded": least_loaded,
    "power_of_two": power_of_two,
    "cache_aware": cache_aware,
    "session_affinity": session_affinity,
    "kv_centric": kv_centric,
}
