"""What lies below the replicas' pools: each one's host memory and disk, and a pool that all share.

What leaves a device goes to its host, what leaves the host to its disk, and everything that leaves a device also to the
shared pool. A block may be in several places; the nearest is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvist.cluster.prefix_index import PrefixKey
from kvist.kvcache.connector import KVPlace, KVSource
from kvist.kvcache.tiers import KVTier


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSizes:
    """Blocks of one replica's tiers."""

    host_blocks: int
    disk_blocks: int


class TierIndex:
    def __init__(self, sizes: Sequence[TierSizes], *, shared_blocks: int) -> None:
        self._hosts = [KVTier(size.host_blocks) for size in sizes]
        self._disks = [KVTier(size.disk_blocks) for size in sizes]
        self._shared = KVTier(shared_blocks)
        self.is_empty = shared_blocks == 0 and not any(size.host_blocks or size.disk_blocks for size in sizes)

    def note_left_device(self, replica_id: int, keys: Sequence[PrefixKey]) -> None:
        """Keep what a replica's pool let go of, in the order in which it did: the tails of prompts first."""
        if self.is_empty:
            return
        self._disks[replica_id].store(self._hosts[replica_id].store(keys))
        self._shared.store(keys)

    def own_tiers(self, replica_id: int, keys: Sequence[PrefixKey], first: int) -> list[tuple[KVSource, int]]:
        """From where, and up to which block, the replica can go on after block `first` by its own tiers."""
        places = ((KVPlace.HOST, self._hosts[replica_id]), (KVPlace.DISK, self._disks[replica_id]))
        return [
            (KVSource(place, replica_id), first + num_blocks)
            for place, tier in places
            if (num_blocks := tier.num_held_blocks(keys, first))
        ]

    def shared_pool(self, keys: Sequence[PrefixKey], first: int) -> list[tuple[KVSource, int]]:
        num_blocks = self._shared.num_held_blocks(keys, first)
        return [(KVSource(KVPlace.SHARED_POOL, None), first + num_blocks)] if num_blocks else []

    def touch(self, source: KVSource, keys: Sequence[PrefixKey]) -> None:
        """Note that these blocks are about to be read from there."""
        if source.place is KVPlace.SHARED_POOL:
            self._shared.touch(keys)
        elif source.replica_id is not None and source.place is not KVPlace.DEVICE:
            (self._hosts if source.place is KVPlace.HOST else self._disks)[source.replica_id].touch(keys)

    def forget(self, replica_id: int) -> None:
        """The replica's host memory is lost; its disk is not."""
        self._hosts[replica_id].clear()
