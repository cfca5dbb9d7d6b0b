"""Which replicas hold which prefixes, learnt from their KV events. One index for the whole cluster.

A prefix of whole blocks is known by a chained digest: that of the prefix before its last block, and of that block's
tokens. So equal digests are equal prefixes, and a look-up reads each token of a prompt once, however many replicas.
Holders are the bits of an int, so that one `&` follows all of them along a prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

from kvist.core.request import KeyDomain
from kvist.kvcache.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from kvist.kvcache.token_blocks import TOKEN_BYTES

DIGEST_BYTES = 16

PrefixKey = bytes


def prefix_keys(domain: KeyDomain, token_ids: bytes, block_size: int) -> list[PrefixKey]:
    """The digest of each whole-block prefix of a prompt, shortest first."""
    return _extend_keys(_root_key(domain), token_ids, block_size * TOKEN_BYTES)


def _root_key(domain: KeyDomain) -> PrefixKey:
    return blake2b(domain, digest_size=DIGEST_BYTES, person=b"kvist prefix").digest()


def _extend_keys(key: PrefixKey, token_ids: bytes, block_bytes: int) -> list[PrefixKey]:
    keys = []
    with memoryview(token_ids) as view:
        for start in range(0, len(token_ids) - block_bytes + 1, block_bytes):
            digest = blake2b(key, digest_size=DIGEST_BYTES)
            digest.update(view[start : start + block_bytes])
            key = digest.digest()
            keys.append(key)
    return keys


class PrefixIndex:
    """Prefixes in the pools of replicas 0 .. num_replicas - 1."""

    def __init__(self, num_replicas: int, block_size: int) -> None:
        self._block_bytes = block_size * TOKEN_BYTES
        self._holders: dict[PrefixKey, int] = {}  # bit r: replica r holds it
        self._keys: list[dict[int, PrefixKey]] = [{} for _ in range(num_replicas)]  # block id -> prefix that it ends

    def __len__(self) -> int:
        return len(self._holders)

    def apply(self, replica_id: int, events: Iterable[KVEvent]) -> list[PrefixKey]:
        """Take in what changed in a replica's tree; return the prefixes that it holds no more, in order."""
        keys = self._keys[replica_id]
        gone: list[PrefixKey] = []
        for event in events:
            if isinstance(event, BlockStored):
                self._store(replica_id, event)
            elif isinstance(event, BlockRemoved):
                removed = [keys.pop(block_id) for block_id in event.block_ids]
                self._forget(replica_id, removed)
                gone += removed
            elif isinstance(event, AllBlocksCleared):
                gone += self.clear(replica_id)
        return gone

    def clear(self, replica_id: int) -> list[PrefixKey]:
        """The replica holds nothing any more. Returns what it held."""
        gone = list(self._keys[replica_id].values())
        self._keys[replica_id] = {}
        self._forget(replica_id, gone)
        return gone

    def num_held_blocks(self, keys: Sequence[PrefixKey], num_replicas: int) -> list[int]:
        """How many leading blocks of the prompt with these keys each replica holds."""
        held = [0] * num_replicas
        mask = (1 << num_replicas) - 1
        for depth, key in enumerate(keys):
            still = mask & self._holders.get(key, 0)
            _set_bits(held, mask ^ still, depth)
            mask = still
            if not mask:
                return held
        _set_bits(held, mask, len(keys))
        return held

    def _store(self, replica_id: int, event: BlockStored) -> None:
        keys = self._keys[replica_id]
        parent = _root_key(event.domain) if event.parent_block_id is None else keys[event.parent_block_id]
        bit = 1 << replica_id
        holders = self._holders
        for block_id, key in zip(
            event.block_ids, _extend_keys(parent, event.token_ids, self._block_bytes), strict=True
        ):
            keys[block_id] = key
            holders[key] = holders.get(key, 0) | bit

    def _forget(self, replica_id: int, keys: Iterable[PrefixKey]) -> None:
        bit = 1 << replica_id
        for key in keys:
            left = self._holders[key] & ~bit
            if left:
                self._holders[key] = left
            else:
                del self._holders[key]


def _set_bits(held: list[int], bits: int, value: int) -> None:
    while bits:
        low = bits & -bits
        held[low.bit_length() - 1] = value
        bits ^= low
