"""Mooncake's scheduling (FAST'25, Alg. 1): the soonest first token, with KV moved to where there is time to use it.

For each replica: TTFT = transfer + queue + prefill of what is still missing. The prefix may be its own, or that of the
replica which holds most of the prompt, if that is clearly longer (`balancing_threshold`) and cheaper to fetch than to
compute. What is fetched stays as a second copy: so hot prefixes are replicated, exactly as fast as their load asks for.
Weights divide the queue's part only, so that a replica with a small share still wins where it has the prompt.
"""

from __future__ import annotations

from kvist.cluster.predictions import PrefillEstimate
from kvist.cluster.routing_view import RoutingView


def kv_centric(view: RoutingView) -> PrefillEstimate:
    """Choose the lowest predicted time to first token, transfers included; of equal ones, who computes least."""
    weights = {replica.replica_id: replica.prefill_weight or 1.0 for replica in view.candidates}
    return min(
        map(view.best, view.candidates),
        key=lambda estimate: (
            estimate.transfer_s + estimate.queue_s / weights[estimate.replica_id] + estimate.prefill_s,
            estimate.prefill_s,
            estimate.replica_id,
        ),
    )
