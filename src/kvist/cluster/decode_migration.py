"""Decodes that go on elsewhere: away from replicas that take no more outputs, or that run short of memory.

A request is moved with its KV: its replica stops decoding it and holds the blocks, the other one reserves blocks, reads
and goes on. Meanwhile the stream stands still, so a move must pay: where memory is short its transfer takes less time
than the recomputation that a preemption would cost; where a replica is drained what is left of the output, transfer
included, is expected sooner than where it is. A choice, made from the router's own account; it changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvist.cluster.cluster_state import ClusterState, DecodeWork, ReplicaState
from kvist.cluster.predictions import Predictor
from kvist.core.request import RequestId
from kvist.kvcache.connector import KVPlace, KVSource

# Shares of a pool that its decodes are expected to take at their ends. Above the first one a replica gives some away,
# and none takes more than the second one: so nothing goes back and forth.
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
    accounts = [_Account(replica, state, predictor, now) for replica in state.replicas if replica.is_live]
    for source in accounts:
        if not (source.is_drained or source.is_short):
            continue
        latest_first = sorted(source.replica.decodes.items(), key=lambda item: -item[1].starts_s)
        for request_id, work in latest_first:
            if not work.has_started or not may_move(request_id):
                continue
            target = _best_target(source, work, accounts, predictor, now)
            if target is not None:
                return Migration(request_id, source.replica.replica_id, target.replica.replica_id)
    return None


class _Account:
    """What a replica's decodes take. How far each is follows from how long it has decoded."""

    def __init__(self, replica: ReplicaState, state: ClusterState, predictor: Predictor, now: float) -> None:
        self.replica = replica
        self._now = now
        self._step_s = predictor.decode_step_s(replica.spec, len(replica.decodes), replica.decode_tokens)
        self._expected = state.expected_output_tokens(LONGEST_OUTPUT)
        self.total_tokens = sum(map(self.num_tokens, replica.decodes.values()))

    @property
    def is_drained(self) -> bool:
        return self.replica.decode_weight <= 0.0

    @property
    def is_short(self) -> bool:
        return self.total_tokens > FULL_SHARE * self.replica.spec.kv_cache_tokens

    def has_room(self, num_tokens: int) -> bool:
        replica = self.replica
        if not replica.can_decode or len(replica.decodes) >= replica.spec.max_num_seqs:
            return False
        return self.total_tokens + num_tokens <= ROOM_SHARE * replica.spec.kv_cache_tokens

    def num_tokens(self, work: DecodeWork) -> int:
        """At its end, as was expected, or by now if that is more."""
        return work.num_tokens + max(0, self._num_done(work) - self._expected)

    def num_left(self, work: DecodeWork) -> int:
        """Output tokens that are expected yet: one at least."""
        return max(1, self._expected - self._num_done(work))

    def _num_done(self, work: DecodeWork) -> int:
        if not work.has_started or self._step_s <= 0.0:
            return 0
        return int((self._now - work.starts_s) / self._step_s)


def _best_target(
    source: _Account, work: DecodeWork, accounts: Sequence[_Account], predictor: Predictor, now: float
) -> _Account | None:
    """Where the rest of the output is expected soonest, among replicas with room; None if staying is better."""
    num_tokens, num_left = source.num_tokens(work), source.num_left(work)
    held = KVSource(KVPlace.DEVICE, source.replica.replica_id)

    def rest_s(account: _Account) -> float:
        num_prompt_tokens = max(num_tokens - num_left, 1)
        return num_left * predictor.tpot_s(
            account.replica, num_prompt_tokens=num_prompt_tokens, num_output_tokens=num_left, now=now
        )

    def moved_s(account: _Account) -> float:
        return predictor.transfer_s(held, source.replica.spec.node, account.replica.spec, num_tokens)

    others = [each for each in accounts if each is not source and each.has_room(num_tokens)]
    best = min(others, key=lambda each: (moved_s(each) + rest_s(each), each.replica.replica_id), default=None)
    if best is None:
        return None
    if source.is_short:
        stays_s, goes_s = predictor.prefill_s(source.replica.spec, num_tokens, 0), moved_s(best)
    else:
        stays_s, goes_s = rest_s(source), moved_s(best) + rest_s(best)
    return best if goes_s < stays_s else None
