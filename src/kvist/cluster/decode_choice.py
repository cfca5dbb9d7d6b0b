"""Who decodes: by the time per output token to expect, where memory allows; the prefilling replica may be chosen.

Splitting prefill from decode is decided here, request by request: staying saves the transfer but shares steps with the
prompts queued there, going costs the transfer and meets only decodes.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvist.cluster.cluster_request import ClusterRequest
from kvist.cluster.cluster_state import ClusterState, ReplicaState
from kvist.cluster.predictions import Predictor, PrefillEstimate
from kvist.kvcache.connector import KVPlace, KVSource


@dataclass(frozen=True, slots=True)
class DecodeEstimate:
    replica_id: int
    tpot_s: float
    fits: bool


def choose_decode(
    request: ClusterRequest, prefill: PrefillEstimate, state: ClusterState, predictor: Predictor, now: float
) -> DecodeEstimate:
    """The lowest expected time per output token among replicas with memory for the request; else the emptiest one."""
    num_output_tokens = state.expected_output_tokens(request.max_tokens)
    num_tokens = request.num_prompt_tokens + num_output_tokens
    source = KVSource(KVPlace.DEVICE, prefill.replica_id)
    source_node = state.replicas[prefill.replica_id].spec.node

    def rank(replica: ReplicaState) -> tuple[bool, float, float, int]:
        tpot_s = predictor.tpot_s(
            replica, num_prompt_tokens=request.num_prompt_tokens, num_output_tokens=num_output_tokens, now=now
        )
        if replica.replica_id != prefill.replica_id:
            transfer_s = predictor.transfer_s(source, source_node, replica.spec, request.num_prompt_tokens)
            tpot_s += transfer_s / num_output_tokens
        fits = _fits(replica, num_tokens)
        usage = replica.decode_tokens / replica.spec.kv_cache_tokens
        return (not fits, 0.0 if fits else usage, tpot_s / (replica.decode_weight or 1.0), replica.replica_id)

    best = min(state.decode_candidates(), key=rank)
    tpot_s = predictor.tpot_s(
        best, num_prompt_tokens=request.num_prompt_tokens, num_output_tokens=num_output_tokens, now=now
    )
    return DecodeEstimate(best.replica_id, tpot_s, _fits(best, num_tokens))


def _fits(replica: ReplicaState, num_tokens: int) -> bool:
    spec = replica.spec
    return len(replica.decodes) < spec.max_num_seqs and replica.decode_tokens + num_tokens <= spec.kv_cache_tokens
