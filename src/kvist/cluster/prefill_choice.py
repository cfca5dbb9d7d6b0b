"""The ways in which one request's prompt could be computed: on which replica, with KV from where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvist.cluster.cluster_request import ClusterRequest
from kvist.cluster.cluster_state import ClusterState, ReplicaState
from kvist.cluster.predictions import Predictor, PrefillEstimate
from kvist.cluster.prefix_index import PrefixKey
from kvist.cluster.tier_index import TierIndex
from kvist.kvcache.connector import KVPlace, KVSource


@dataclass(slots=True, eq=False)
class PrefillChoice:
    """Estimates for one request. num_held_blocks: of its prompt, by replica, in the replica's pool."""

    request: ClusterRequest
    keys: Sequence[PrefixKey]
    num_held_blocks: Sequence[int]
    state: ClusterState
    tiers: TierIndex
    predictor: Predictor
    block_size: int
    balancing_threshold: float
    now: float
    _owner: tuple[int | None] | None = None  # looked for once, when first asked for

    def local(self, replica: ReplicaState) -> PrefillEstimate:
        """With what the replica holds, in its pool or in tiers of its own: loaded or computed again, as is sooner."""
        estimate = self._estimate(replica, None, 0)
        if self.tiers.is_empty:
            return estimate
        first = self.num_held_blocks[replica.replica_id]
        options = self.tiers.own_tiers(replica.replica_id, self.keys, first)
        return self._soonest(estimate, [self._estimate(replica, *option) for option in options])

    def best(self, replica: ReplicaState) -> PrefillEstimate:
        """Also with KV from the replica that holds most of the prompt, or from the shared pool."""
        estimate = self.local(replica)
        first = self.num_held_blocks[replica.replica_id]
        options = [] if self.tiers.is_empty else self.tiers.shared_pool(self.keys, first)
        owner = self._best_owner()
        if owner is not None:
            options.append((KVSource(KVPlace.DEVICE, owner), self.num_held_blocks[owner]))
        enough = self.balancing_threshold * max(estimate.num_reused // self.block_size, 1)
        return self._soonest(
            estimate, [self._estimate(replica, source, end) for source, end in options if end > enough]
        )

    def _best_owner(self) -> int | None:
        """The live replica that holds most of the prompt; of equal ones the one with the shortest queue."""
        if self._owner is None:
            self._owner = (self._find_owner(),)
        return self._owner[0]

    def _find_owner(self) -> int | None:
        if not any(self.num_held_blocks):
            return None
        holders = [replica for replica in self.state.replicas if replica.is_live]
        best = max(
            holders,
            key=lambda replica: (
                self.num_held_blocks[replica.replica_id],
                -replica.queue_s(self.now),
                -replica.replica_id,
            ),
            default=None,
        )
        return None if best is None or self.num_held_blocks[best.replica_id] == 0 else best.replica_id

    def _estimate(self, replica: ReplicaState, source: KVSource | None, end_block: int) -> PrefillEstimate:
        num_tokens = self.request.num_prompt_tokens
        num_local = min(self.num_held_blocks[replica.replica_id] * self.block_size, num_tokens - 1)
        num_reused, transfer_s = num_local, 0.0
        if source is not None:
            num_reused = min(end_block * self.block_size, num_tokens - 1)
            is_remote = source.replica_id is not None and source.place is KVPlace.DEVICE
            node = (
                self.state.replicas[source.replica_id].spec.node
                if is_remote and source.replica_id is not None
                else None
            )
            transfer_s = self.predictor.transfer_s(source, node, replica.spec, num_reused - num_local)
        return PrefillEstimate(
            replica_id=replica.replica_id,
            num_local=num_local,
            num_reused=num_reused,
            source=source,
            transfer_s=transfer_s,
            queue_s=replica.queue_s(self.now),
            prefill_s=self.predictor.prefill_s(replica.spec, num_tokens, num_reused),
        )

    @staticmethod
    def _soonest(first: PrefillEstimate, others: Sequence[PrefillEstimate]) -> PrefillEstimate:
        """The least time; without gain the first, which moves least."""
        return min([first, *others], key=lambda estimate: estimate.transfer_s + estimate.prefill_s)
