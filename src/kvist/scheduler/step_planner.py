"""Plans one step: asks the policy, allocates blocks for what it grants, preempts when memory runs out."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import cast

from kvist.core.errors import KVPoolExhaustedError
from kvist.core.request import RequestState
from kvist.core.request_events import ChunkCut, Preempted, Scheduled
from kvist.kvcache.kv_cache import BlockTable, PrefixMatch
from kvist.scheduler.candidates import NO_MATCH, CandidateSource
from kvist.scheduler.drafting import Speculator
from kvist.scheduler.plan_builder import PlanBuilder, PlannedStep
from kvist.scheduler.policy import Grants, Policy, PolicyView
from kvist.scheduler.preemption import GrowthReserve, GrowthTally, choose_victim
from kvist.scheduler.scheduler_state import SchedulerState
from kvist.scheduler.time_limit import most_drafts
from kvist.scheduler.tracked_request import Rank, TrackedRequest


class Start(Enum):
    """What became of a waiting request that was granted tokens."""

    STARTED = "started"
    WAITS_FOR_KV = "waits_for_kv"
    NO_MEMORY = "no_memory"


class StepPlanner:
    """Changes state only as far as the returned step needs: blocks, in-flight counts, starts and preemptions."""

    def __init__(
        self,
        state: SchedulerState,
        candidates: CandidateSource,
        reserve: GrowthReserve,
        policy: Policy,
        *,
        token_budget: int,
        max_chunk_tokens: int,
        speculator: Speculator | None,
    ) -> None:
        self._state = state
        self._candidates = candidates
        self._reserve = reserve
        self._policy = policy
        self._token_budget = token_budget
        self._max_chunk_tokens = max_chunk_tokens
        self._speculator = speculator
        self._num_steps = 0
        self._refused_at = -1  # available blocks when memory was too short for KV from elsewhere

    def plan(self, now: float, *, max_candidates: int) -> PlannedStep | None:
        """Plan a step that starts at most `max_candidates` waiting requests. None if it would be empty."""
        running, step_times = self._state.running, self._state.step_times
        view = PolicyView(
            decoding=running.decoding if self._state.num_stages == 1 else self._one_share(running.decoding),
            prefilling=running.prefilling,
            waiting=self._candidates.draw(now, max_candidates=max_candidates),
            max_chunk_tokens=self._max_chunk_tokens,
            num_admitted_since_idle=running.num_admitted_since_idle,
            now=now + sum(step_times.predict_s(step.work) for step in self._state.open_steps),
            step_times=step_times,
            prefill_slowdown=self._state.prefill_pace.slowdown,
        )
        grants = self._policy(view, self._token_budget)
        for cut in grants.cuts:
            request_id = cut.request.request_id
            self._state.events.append(
                ChunkCut(request_id, now, cut.num_tokens, cut.num_wanted_tokens, max(cut.limit_s, 0.0), cut.tpot_s)
            )
        builder = PlanBuilder(self._num_steps)
        has_preempted = self._add_decodes(builder, cast("Sequence[TrackedRequest]", grants.decodes), now)
        self._add_chunks(builder, grants, now, may_start=not has_preempted)
        if builder.is_empty:
            return None
        if self._speculator is not None and builder.decodes:
            room = most_drafts(
                step_times,
                builder.work(),
                num_decodes=len(builder.decodes),
                mean_context=builder.mean_decode_context,
                num_wanted=self._token_budget - builder.num_tokens - grants.num_padding_tokens,
                limit_s=grants.limit_s,
            )
            self._add_drafts(builder, self._speculator, room)
        self._num_steps += 1
        builder.add_joined(self._state.joined.values())
        self._state.joined = {}
        dropped, self._state.dropped = self._state.dropped, []
        return builder.build(dropped_request_ids=dropped, num_padding_tokens=grants.num_padding_tokens)

    def _one_share(self, decoding: Sequence[TrackedRequest]) -> list[TrackedRequest]:
        """Decodes for one step of a pipeline: its share of all, of those whose last token is known."""
        idle = [request for request in decoding if not request.num_in_flight_samples]
        return idle[: -(-len(decoding) // self._state.num_stages)]

    def has_refused_kv(self) -> bool:
        """Whether nobody can get blocks for KV from elsewhere now: none has asked, or memory was and is too short."""
        return not self._state.handover.asked or self._state.kv_cache.num_available_blocks <= self._refused_at

    def skip_steps(self, num_steps: int) -> None:
        """Count steps that were taken without a plan."""
        self._num_steps += num_steps

    def reserve_for_kv(self, *, max_requests: int) -> None:
        """Take blocks for requests whose KV comes from elsewhere, in order of arrival, as far as memory goes.

        They come before the waiting queue: most of their work is done already.
        """
        state, handover, cache = self._state, self._state.handover, self._state.kv_cache
        if self.has_refused_kv():
            return
        self._refused_at = -1
        growth = self._tally()
        for request in list(handover.asked.values())[: max(max_requests, 0)]:
            match = handover.whole_block_match(request)
            if match.num_tokens >= request.new.num_incoming_tokens:
                del handover.asked[request.id]
                state.queue.add(request)  # it is all here by now
                continue
            num_needed = -(-request.num_tokens // state.block_size) - len(match.block_ids)
            num_needed += cache.num_evictable_blocks_of(match)
            if state.running or handover.is_holding:
                num_needed += growth.num_blocks(request)
            if num_needed > cache.num_available_blocks:
                self._refused_at = cache.num_available_blocks
                return
            handover.reserve(request, match)
            growth.add(request)

    def join_arrived(self, now: float) -> None:
        """Let those run whose KV is here."""
        state = self._state
        arrived, state.handover.arrived = state.handover.arrived, {}
        for request in arrived.values():
            request.state = RequestState.RUNNING
            state.running.join(request)
            state.joined[request.id] = request
            state.events.append(Scheduled(request.id, now, request.num_computed_tokens))

    def _tally(self) -> GrowthTally:
        state = self._state
        return self._reserve.tally([*state.running.by_id.values(), *state.handover.holders()])

    def _add_decodes(self, builder: PlanBuilder, granted: Sequence[TrackedRequest], now: float) -> bool:
        """Add the granted decodes with the blocks they need. Returns whether somebody was preempted for that."""
        decodes = list(granted)
        positions = [request.num_computed_tokens + request.num_in_flight_tokens for request in decodes]
        attention = [
            (request, position)
            for request, position in zip(decodes, positions, strict=True)
            if position >= request.attention_position
        ]
        has_preempted = False
        if attention:
            attention.sort(key=_rank_of_first)
            for request, position in attention:
                if position >= request.num_covered_tokens:
                    has_preempted |= self._grow_or_preempt(builder, request, position, now)
            if has_preempted:
                decodes = [request for request in decodes if request.state is RequestState.RUNNING]
                positions = [request.num_computed_tokens + request.num_in_flight_tokens for request in decodes]
        builder.set_decodes(decodes, positions)
        for request, _ in attention:
            if request.state is RequestState.RUNNING:
                request.set_attention(self._state.block_size)
                if len(request.token_ids) + request.num_in_flight_samples >= request.max_total_tokens:
                    self._state.running.end_decode(request)
        return has_preempted

    def _grow_or_preempt(self, builder: PlanBuilder, request: TrackedRequest, position: int, now: float) -> bool:
        """Give `request` a block for `position`, preempting those behind it, or itself if it is the last.

        Returns whether anybody was preempted. The first in rank always gets its block: alone it fits the pool.
        """
        has_preempted = False
        while request.table is not None:
            try:
                growth = self._state.kv_cache.grow(request.table, num_tokens=position + 1, write_from=position)
            except KVPoolExhaustedError:
                self._preempt(choose_victim(self._state.running.by_id.values()), now)
                has_preempted = True
                continue
            if growth is not None:
                builder.add_growth(request.id, growth)
            request.num_covered_tokens = len(request.table.block_ids) * self._state.block_size
            break
        return has_preempted

    def _add_drafts(self, builder: PlanBuilder, speculator: Speculator, max_tokens: int) -> None:
        """Let decodes verify drafts with the budget and the blocks that nothing else needs. Nobody is preempted."""
        requests = builder.decodes
        # After all drafts are accepted one more token is sampled: it is the last one at the latest.
        limits = [request.num_remaining_tokens - 1 for request in requests]
        drafts = speculator.propose(requests, limits, num_base_tokens=builder.num_tokens, max_tokens=max_tokens)
        for request, draft in zip(requests, drafts, strict=True):
            if draft is not None and (num_tokens := self._make_room(builder, request, draft.num_tokens)):
                builder.add_draft(request, draft.cut(num_tokens))

    def _make_room(self, builder: PlanBuilder, request: TrackedRequest, num_draft_tokens: int) -> int:
        """Give `request` blocks for its drafts as far as there are any; return how many drafts they hold."""
        position = request.num_computed_tokens  # of the one known token; the drafts come after it
        if position + num_draft_tokens >= request.num_covered_tokens and request.table is not None:
            num_tokens = position + 1 + num_draft_tokens
            cache = self._state.kv_cache
            num_blocks = cache.blocks_needed(request.table, num_tokens=num_tokens, write_from=position)
            if num_blocks <= cache.num_available_blocks:
                growth = cache.grow(request.table, num_tokens=num_tokens, write_from=position)
                if growth is not None:
                    builder.add_growth(request.id, growth)
                request.num_covered_tokens = len(request.table.block_ids) * self._state.block_size
        return min(num_draft_tokens, request.num_covered_tokens - position - 1)

    def _preempt(self, victim: TrackedRequest, now: float) -> None:
        state = self._state
        state.stop_running(victim)
        state.events.append(Preempted(victim.id, now, victim.num_computed_tokens))
        victim.state = RequestState.PREEMPTED
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        victim.kv_wait = None
        state.queue.add(victim)
        self._reserve.note_preempted()

    def _add_chunks(self, builder: PlanBuilder, grants: Grants, now: float, *, may_start: bool) -> None:
        """Add granted chunks. Nobody starts (`may_start`) in a step that preempts: those that run need the memory."""
        growth = self._tally()
        for granted, num_tokens in grants.chunks:
            request = cast("TrackedRequest", granted)
            if request.state is not RequestState.RUNNING:
                if not may_start:
                    continue
                start = self._start(builder, request, growth, now)
                may_start = start is not Start.NO_MEMORY
                if start is not Start.STARTED:
                    continue
            if builder.add_chunk(request, num_tokens):
                self._state.running.end_prefill(request)

    def _start(self, builder: PlanBuilder, request: TrackedRequest, growth: GrowthTally, now: float) -> Start:
        """Move `request` from the queue into the running set, with blocks for all its known tokens.

        Those started a moment ago may have changed the cache, so everything is looked at again.
        """
        state = self._state
        if self._candidates.waits_for_kv(request, now):
            return Start.WAITS_FOR_KV
        num_reused = self._candidates.num_reusable_tokens(request)
        num_needed = self._candidates.num_taken_blocks(request)
        is_alone = not state.running and not state.handover.is_holding
        if not is_alone:
            num_needed += growth.num_blocks(request)
        if num_needed <= state.kv_cache.num_available_blocks:
            table = self._open_table(request, num_reused)
        elif not is_alone:
            self._candidates.note_refused(request)
            return Start.NO_MEMORY
        else:
            # Alone it fits, but a shared block that is to be copied takes a place of its own: do without it.
            num_reused = 0
            table = self._admit(request, NO_MATCH)
        new_blocks = state.kv_cache.grow(table, num_tokens=request.num_tokens, write_from=num_reused)
        state.queue.remove(request)
        request.state = RequestState.RUNNING
        request.table = table
        request.match = None
        request.num_computed_tokens = num_reused
        if request.num_preemptions == 0:
            request.num_cached_tokens = num_reused
        request.num_covered_tokens = len(table.block_ids) * state.block_size
        request.set_attention(state.block_size)
        state.running.add(request)
        growth.add(request)
        state.events.append(Scheduled(request.id, now, num_reused))
        builder.add_start(request, new_blocks.moves if new_blocks is not None else [])
        return Start.STARTED

    def _open_table(self, request: TrackedRequest, num_reused: int) -> BlockTable:
        parent = self._candidates.fork_parent(request)
        if parent is not None and parent.table is not None and self._candidates.can_fork(request):
            return self._state.kv_cache.fork(request.id, parent.table, num_tokens=num_reused)
        return self._admit(request, self._candidates.match(request))

    def _admit(self, request: TrackedRequest, match: PrefixMatch) -> BlockTable:
        new = request.new
        return self._state.kv_cache.admit(
            request.id, new.domain, request.token_ids.tobytes(), match, priority=new.priority
        )


def _rank_of_first(pair: tuple[TrackedRequest, int]) -> Rank:
    return pair[0].rank
