"""KV that comes from or goes to another place: who waits for it, who holds blocks for a reader.

A request with `num_incoming_tokens` is `asked` until memory for all its known tokens is there, then `receiving`: its
blocks are reserved and a `KVReceive` tells the driver what to bring. When that is here the request is `arrived` and
joins the running set with the next plan. A request that `leases_kv` keeps its blocks after its end. Moves no bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvist.core.request import KeyDomain, RequestId, RequestState
from kvist.kvcache.connector import KVReceive
from kvist.kvcache.kv_cache import BlockTable, KVCache, PrefixMatch
from kvist.kvcache.token_blocks import TOKEN_BYTES
from kvist.scheduler.tracked_request import TrackedRequest

KV_LEASE_S = 600.0  # then a reader that never came is given up


@dataclass(slots=True)
class _Lease:
    table: BlockTable
    expires_s: float


class KVHandover:
    """Owns the three stages of receiving, and the leases. Each request is in at most one of them."""

    def __init__(self, kv_cache: KVCache) -> None:
        self._kv_cache = kv_cache
        self._leases: dict[RequestId, _Lease] = {}  # in order of expiry
        self._receives: list[KVReceive] = []
        self.asked: dict[RequestId, TrackedRequest] = {}  # in order of arrival
        self.receiving: dict[RequestId, TrackedRequest] = {}
        self.arrived: dict[RequestId, TrackedRequest] = {}

    @property
    def num_holding(self) -> int:
        """Requests that hold blocks and do not run yet."""
        return len(self.receiving) + len(self.arrived)

    @property
    def has_leases(self) -> bool:
        return bool(self._leases)

    @property
    def is_holding(self) -> bool:
        """Whether blocks are held for anybody who does not run."""
        return bool(self.receiving or self.arrived or self._leases)

    def tables(self) -> dict[RequestId, BlockTable]:
        """All tables held here, for checks."""
        held = {request.id: request.table for request in self.holders() if request.table is not None}
        return held | {request_id: lease.table for request_id, lease in self._leases.items()}

    def holders(self) -> Iterator[TrackedRequest]:
        """Requests that hold blocks and do not run yet."""
        yield from self.receiving.values()
        yield from self.arrived.values()

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self.asked or request_id in self.receiving or request_id in self.arrived

    def whole_block_match(self, request: TrackedRequest) -> PrefixMatch:
        """What is here already. Whole blocks only: a copy within the pool would need a step."""
        cache = self._kv_cache
        match = cache.match(request.new.domain, request.token_ids.tobytes(), max_tokens=request.num_tokens - 1)
        num_blocks = match.num_tokens // cache.block_size
        return PrefixMatch(
            num_tokens=num_blocks * cache.block_size,
            num_pending_tokens=0,
            block_ids=match.block_ids[:num_blocks],
            version=match.version,
            tree_node=match.tree_node,
        )

    def reserve(self, request: TrackedRequest, match: PrefixMatch) -> None:
        """Take blocks for all known tokens of an asked request and tell the driver what to bring into them."""
        new = request.new
        del self.asked[request.id]
        token_ids = request.token_ids.tobytes()
        table = self._kv_cache.admit(request.id, new.domain, token_ids, match, priority=new.priority)
        self._kv_cache.grow(table, num_tokens=request.num_tokens, write_from=match.num_tokens)
        request.table = table
        request.num_covered_tokens = len(table.block_ids) * self._kv_cache.block_size
        request.num_computed_tokens = match.num_tokens
        request.state = RequestState.WAITING_FOR_KV
        self.receiving[request.id] = request
        self._receives.append(KVReceive(request.id, match.num_tokens, new.num_incoming_tokens, list(table.block_ids)))

    def take_receives(self) -> list[KVReceive]:
        receives, self._receives = self._receives, []
        return receives

    def arrive(self, request_id: RequestId, num_tokens: int) -> TrackedRequest | None:
        """The KV of the first `num_tokens` tokens is here, and no more will come. None if nobody waits for it."""
        request = self.receiving.pop(request_id, None)
        if request is None or request.table is None:
            return None
        request.num_computed_tokens = max(request.num_computed_tokens, num_tokens)
        self._kv_cache.commit(request.table, request.token_ids, num_computed_tokens=request.num_computed_tokens)
        request.num_cached_tokens = request.num_computed_tokens
        request.set_attention(self._kv_cache.block_size)
        self.arrived[request_id] = request
        return request

    def drop(self, request: TrackedRequest) -> None:
        """Forget a request of any stage and give up its blocks."""
        for stage in (self.asked, self.receiving, self.arrived):
            stage.pop(request.id, None)
        if request.table is not None:
            self._kv_cache.release(request.table)
            request.table = None

    def lease(self, request_id: RequestId, table: BlockTable, now: float) -> None:
        """Hold the blocks of `table` for a reader."""
        self._leases[request_id] = _Lease(table, now + KV_LEASE_S)

    def lease_prefix(self, request_id: RequestId, domain: KeyDomain, token_ids: bytes, now: float) -> int:
        """Hold the cached whole blocks of a prompt for a reader elsewhere; return how many tokens they are."""
        match = self._kv_cache.match(domain, token_ids, max_tokens=len(token_ids) // TOKEN_BYTES)
        num_tokens = match.num_tokens // self._kv_cache.block_size * self._kv_cache.block_size
        if num_tokens:
            prefix = token_ids[: num_tokens * TOKEN_BYTES]
            whole = self._kv_cache.match(domain, prefix, max_tokens=num_tokens)
            self.lease(request_id, self._kv_cache.admit(request_id, domain, prefix, whole), now)
        return num_tokens

    def holds(self, request_id: RequestId) -> bool:
        """Whether there is such a lease."""
        return request_id in self._leases

    def release_lease(self, request_id: RequestId) -> bool:
        """The reader has all it needs. Returns whether there was such a lease."""
        lease = self._leases.pop(request_id, None)
        if lease is None:
            return False
        self._kv_cache.release(lease.table)
        return True

    def expire_leases(self, now: float) -> None:
        """Give up leases whose reader has not come in time."""
        while self._leases:
            request_id, lease = next(iter(self._leases.items()))
            if lease.expires_s > now:
                return
            self.release_lease(request_id)
