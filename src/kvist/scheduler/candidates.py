"""Which waiting requests may start now: cache matches, waits for KV that others compute, and memory.

Owns the waits and the cached matches. Claims no blocks: the scheduler admits what the policy grants.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvist.core.request import KeyDomain, RequestState
from kvist.kvcache.kv_cache import PrefixMatch
from kvist.scheduler.policy import Candidate
from kvist.scheduler.preemption import GrowthReserve
from kvist.scheduler.scheduler_state import SchedulerState
from kvist.scheduler.tracked_request import KVWait, TrackedRequest

KV_WAIT_WITHOUT_PROGRESS_S = 10.0  # then a waiting request computes the blocks itself
NO_MATCH = PrefixMatch(num_tokens=0, num_pending_tokens=0, block_ids=[])

FirstBlockKey = tuple[KeyDomain, int | None, bytes]


class CandidateSource:
    """Draws candidates from the waiting queue, one at a time."""

    def __init__(self, state: SchedulerState, reserve: GrowthReserve) -> None:
        self._state = state
        self._kv_cache = state.kv_cache
        self._block_size = state.block_size
        self._requests = state.requests
        self._running = state.running.by_id
        self._handover = state.handover
        self._reserve = reserve
        self._refused: TrackedRequest | None = None
        self._refused_at = (0, 0, 0)

    def draw(self, now: float, *, max_candidates: int) -> Iterator[Candidate]:
        """Yield up to `max_candidates` requests that may start, in queue order. Ends at the first that does not fit.

        Nobody overtakes a request that waits for memory, or large ones would starve. Requests that wait for KV
        are passed over: what they wait for is on its way.
        """
        if max_candidates <= 0 or self.is_still_refused():
            return
        num_drawn = num_taken_blocks = 0
        growth = self._reserve.tally([*self._running.values(), *self._handover.holders()])
        first_blocks: set[FirstBlockKey] = set()
        for request in self._state.queue.in_order(now, self.num_reusable_tokens):
            if self.waits_for_kv(request, now):
                continue
            num_reused = self.num_reusable_tokens(request)
            key = self._first_missing_block(request, num_reused)
            if key is not None:
                if key in first_blocks:
                    continue  # one drawn a moment ago is about to compute the same block
                first_blocks.add(key)
            num_taken_blocks += self.num_taken_blocks(request)
            is_alone = num_drawn == 0 and not self._running and not self._handover.is_holding
            num_available = self._kv_cache.num_available_blocks
            if not is_alone and not growth.fits(request, num_taken=num_taken_blocks, num_available=num_available):
                if num_drawn == 0:
                    self.note_refused(request)
                return
            growth.add(request)
            yield Candidate(request, request.num_tokens - num_reused)
            num_drawn += 1
            if num_drawn >= max_candidates:
                return

    def match(self, request: TrackedRequest) -> PrefixMatch:
        """What the cache holds for `request` now. Kept as long as no match can have changed."""
        if not request.reads_prefix_cache:
            return NO_MATCH
        match = request.match
        if match is None or request.match_version != self._kv_cache.version:
            # At least one token is computed: the next token's logits need a query.
            match = self._kv_cache.match(
                request.new.domain, request.token_ids.tobytes(), max_tokens=request.num_tokens - 1
            )
            request.match = match
            request.match_version = self._kv_cache.version
        return match

    def fork_parent(self, request: TrackedRequest) -> TrackedRequest | None:
        """The first sample of the same prompt, whose blocks `request` can share. None if it goes its own way."""
        parent_id = request.new.fork_of
        if parent_id is None or request.num_preemptions > 0 or request.scores_prompt:
            return None
        parent = self._requests.get(parent_id)
        if parent is None or parent.new.domain != request.new.domain:
            return None
        return parent if parent.new.prompt_token_ids == request.new.prompt_token_ids else None

    def num_reusable_tokens(self, request: TrackedRequest) -> int:
        """Tokens that `request` would not compute if it started now."""
        if self.can_fork(request):
            return request.num_prompt_tokens - 1
        return self.match(request).num_tokens

    def num_taken_blocks(self, request: TrackedRequest) -> int:
        """Blocks that are available now and would not be once `request` has started."""
        num_blocks = -(-request.num_tokens // self._block_size)
        num_new = num_blocks - self.num_reusable_tokens(request) // self._block_size
        if self.can_fork(request):
            return num_new
        return num_new + self._kv_cache.num_evictable_blocks_of(self.match(request))

    def waits_for_kv(self, request: TrackedRequest, now: float) -> bool:
        """Whether `request` gains by waiting for KV that another request is about to have. Updates its wait.

        Bounded: the wait ends when the other one no longer runs, or made no progress for a while.
        """
        wait = request.kv_wait
        if wait is None or not self._is_current(wait, request):
            wait = self._find_wait(request, now)
            request.kv_wait = wait
        is_waiting = False
        if wait is not None:
            progress = self._requests[wait.owner_id].num_computed_tokens
            if progress != wait.owner_progress:
                wait.owner_progress = progress
                wait.since_s = now
            is_waiting = now - wait.since_s < KV_WAIT_WITHOUT_PROGRESS_S
        if is_waiting:
            request.state = RequestState.WAITING_FOR_KV
        else:
            request.state = RequestState.PREEMPTED if request.num_preemptions else RequestState.WAITING
        return is_waiting

    def note_refused(self, request: TrackedRequest) -> None:
        """Remember that memory was too short for `request`: it is looked at again when more is free."""
        self._refused = request
        self._refused_at = (self._kv_cache.num_available_blocks, len(self._running), self._state.queue.num_added)

    def is_still_refused(self) -> bool:
        """Whether the first in the queue was refused and nothing has changed that: no look at the queue is needed."""
        if self._refused is None or self._refused.table is not None or self._refused.id not in self._requests:
            return False
        num_available, num_running, num_added = self._refused_at
        return (
            self._kv_cache.num_available_blocks <= num_available
            and len(self._running) >= num_running
            and self._state.queue.num_added == num_added
        )

    def _is_current(self, wait: KVWait, request: TrackedRequest) -> bool:
        """Whether the one waited for still computes or receives; a fork's parent may still await its turn."""
        owner = self._requests.get(wait.owner_id)
        if owner is None or owner.num_computed_tokens >= wait.until_computed_tokens:
            return False
        return owner.table is not None or owner is self.fork_parent(request)

    def _find_wait(self, request: TrackedRequest, now: float) -> KVWait | None:
        parent = self.fork_parent(request)
        if parent is not None:
            if parent.num_computed_tokens >= parent.num_prompt_tokens:
                return None
            return KVWait(parent.id, parent.num_prompt_tokens, parent.num_computed_tokens, now)
        match = self.match(request)
        if match.num_pending_tokens == 0 or match.pending_owner is None:
            return None
        owner = self._requests.get(match.pending_owner)
        if owner is None or owner.table is None:
            return None
        until = match.num_tokens // self._block_size * self._block_size + match.num_pending_tokens
        if owner.num_computed_tokens >= until:
            return None
        return KVWait(owner.id, until, owner.num_computed_tokens, now)

    def can_fork(self, request: TrackedRequest) -> bool:
        """Whether the prompt of `request` is computed in the blocks of its first sample."""
        parent = self.fork_parent(request)
        return (
            parent is not None and parent.table is not None and parent.num_computed_tokens >= parent.num_prompt_tokens
        )

    def _first_missing_block(self, request: TrackedRequest, num_reused: int) -> FirstBlockKey | None:
        """Equal for requests that would compute the same next block after the same prefix. None: nothing to share."""
        num_blocks = num_reused // self._block_size
        start = num_blocks * self._block_size
        end = start + self._block_size
        if not (self._kv_cache.enable_prefix_caching and request.reads_prefix_cache) or end >= request.num_tokens:
            return None
        last = self.match(request).block_ids[num_blocks - 1] if num_blocks else None
        return (request.new.domain, last, request.token_ids[start:end].tobytes())
