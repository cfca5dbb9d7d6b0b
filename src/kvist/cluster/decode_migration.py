"""Decodes that go on elsewhere: away from replicas that take no more outputs, or that run short of memory.

A request is moved with its KV: its replica stops decoding it and holds the blocks, the other one reserves blocks, reads
and goes on. Meanwhile the stream stands still, so a move must pay: where memory is short its transfer takes less time
than the recomputation that a preemption would cost; where a replica is drained what is left of the output, transfer
included, is expected sooner than where it is. A choice, made from the router's own account; it changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvist.cluster.cluster_state import ClusterState, DecodeWork, ReplicaState
from kvist.cluster.predictions import Predictor
from kvist.core.request import RequestId
from kvist.kvcache.connector import KVPlace, KVSource

# Shares of a pool that its decodes are expected to take at their ends. Above the first one a replica gives some away,
# and none takes more than the second one: so nothing goes to and fro.
FULL_SHARE = 1.0
ROOM_SHARE = 0.85
LONGEST_OUTPUT = 2**31  # no bound of its own on what outputs are expected to become


@dataclass(frozen=True, slots=True)
class Migration:
    """The decode of a request goes on at `target`."""

    request_id: RequestId
    source: int
    target: int


def choose_migration(
    state: ClusterState, predictor: Predictor, now: float, may_move: Callable[[RequestId], bool]
) -> Migration | None:
    """The next move that pays, if any: of the first replica that has one, its latest decode, which would be preempted.

    may_move: whether a request decodes by now, and has not been moved too often.
    """
    for source in state.replicas:
        if not source.is_live or not (_is_drained(source) or _is_short(source)):
            continue
        latest_first = sorted(source.decodes.items(), key=lambda item: -item[1].starts_s)
        for request_id, work in latest_first:
            if not work.has_started or not may_move(request_id):
                continue
            target = _best_target(source, work, state, predictor, now)
            if target is not None:
                return Migration(request_id, source.replica_id, target.replica_id)
    return None


def _is_drained(replica: ReplicaState) -> bool:
    return replica.decode_weight <= 0.0


def _is_short(replica: ReplicaState) -> bool:
    return replica.decode_tokens > FULL_SHARE * replica.spec.kv_cache_tokens


def _best_target(
    source: ReplicaState, work: DecodeWork, state: ClusterState, predictor: Predictor, now: float
) -> ReplicaState | None:
    """Where the rest of the output is expected soonest, among replicas with room; None if staying is better."""
    num_left = _expected_left(source, work, state, predictor, now)

    def rest_s(replica: ReplicaState) -> float:
        return num_left * predictor.tpot_s(
            replica, num_prompt_tokens=work.num_tokens - num_left, num_output_tokens=num_left, now=now
        )

    def moved_s(replica: ReplicaState) -> float:
        held = KVSource(KVPlace.DEVICE, source.replica_id)
        return predictor.transfer_s(held, source.spec.node, replica.spec, work.num_tokens)

    able = [replica for replica in state.replicas if replica is not source and _has_room(replica, work)]
    best = min(able, key=lambda each: (moved_s(each) + rest_s(each), each.replica_id), default=None)
    if best is None:
        return None
    if _is_short(source):
        stays_s, goes_s = predictor.prefill_s(source.spec, work.num_tokens, 0), moved_s(best)
    else:
        stays_s, goes_s = rest_s(source), moved_s(best) + rest_s(best)
    return best if goes_s < stays_s else None


def _has_room(replica: ReplicaState, work: DecodeWork) -> bool:
    spec = replica.spec
    is_free = len(replica.decodes) < spec.max_num_seqs
    return (
        replica.can_decode and is_free and replica.decode_tokens + work.num_tokens <= ROOM_SHARE * spec.kv_cache_tokens
    )


def _expected_left(
    replica: ReplicaState, work: DecodeWork, state: ClusterState, predictor: Predictor, now: float
) -> int:
    """Output tokens that it is expected to add yet, by how long it has decoded: one at least."""
    expected = state.expected_output_tokens(LONGEST_OUTPUT)
    step_s = predictor.decode_step_s(replica.spec, len(replica.decodes), replica.decode_tokens)
    num_done = int((now - work.starts_s) / step_s) if step_s > 0.0 else 0
    return max(1, min(expected - num_done, work.num_tokens - 1))
