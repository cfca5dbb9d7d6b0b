"""Turns requests into step plans and step results into events. A state machine: (state, event, now) -> decisions.

Owns request progress and the queues. Knows no clock, no tensor and no token's text.
"""

from __future__ import annotations

from kvist.config.scheduler_config import SchedulerConfig
from kvist.core.errors import InvalidRequestError
from kvist.core.request import FinishReason, LatencyTargets, NewRequest, RequestId, RequestState
from kvist.core.request_events import EventBatch, Finished, Queued, RequestEvent, StepSummary
from kvist.core.step_plan import StepPlan
from kvist.core.step_result import StepResult
from kvist.costmodel.online_step_time import OnlineStepTimeModel
from kvist.costmodel.step_time_model import KnownStepTimes, LearningStepTimeModel, StepTimeModel
from kvist.kvcache.kv_cache import KVCache
from kvist.scheduler.admission import (
    CapacityLimits,
    QueueLoad,
    StartRate,
    check_queue,
    check_request,
    total_tokens_limit,
)
from kvist.scheduler.candidates import CandidateSource
from kvist.scheduler.deadlines import Deadlines
from kvist.scheduler.drafting import Speculator
from kvist.scheduler.invariants import check_scheduler
from kvist.scheduler.kv_handover import KVHandover
from kvist.scheduler.plan_builder import PlannedStep
from kvist.scheduler.policies.registry import POLICY_FUNCTIONS
from kvist.scheduler.preemption import GrowthReserve
from kvist.scheduler.queue_orders import arrival_rank, make_queue, priority_rank
from kvist.scheduler.repeated_decodes import RepeatedDecodes
from kvist.scheduler.scheduler_state import SchedulerState
from kvist.scheduler.scheduler_status import SchedulerStatus
from kvist.scheduler.slack import PrefillPace, latency_targets
from kvist.scheduler.step_outcome import StepOutcome, apply_result
from kvist.scheduler.step_planner import StepPlanner
from kvist.scheduler.tracked_request import TrackedRequest, track


class Scheduler:
    """Plans steps over one KV cache, at most `max_steps_in_flight` of them open at once, finished in order.

    max_num_batched_tokens: the resolved token budget of a step (the configuration's may be None). speculator: proposes
    drafts; needs steps one at a time, as its drafts follow tokens whose values are known. num_stages: of a pipeline,
    in which steps overlap and so share no decoding request. step_time_model: predicts and learns the time of steps;
    None for one that has seen none yet.
    """

    def __init__(  # noqa: PLR0913 - one place puts an engine together, by keyword
        self,
        config: SchedulerConfig,
        kv_cache: KVCache,
        *,
        block_size: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        speculator: Speculator | None = None,
        num_stages: int = 1,
        step_time_model: LearningStepTimeModel | None = None,
    ) -> None:
        self._config = config
        self._step_times = step_time_model if step_time_model is not None else OnlineStepTimeModel()
        self._speculator = speculator
        self._max_steps_in_flight = config.max_steps_in_flight if speculator is None else 1
        # Each running request may decode in the same step, so no more may run than the budget has tokens.
        self._max_running = min(config.max_num_seqs, max_num_batched_tokens)
        self._limits = CapacityLimits(
            max_model_len=max_model_len, num_pool_tokens=kv_cache.num_total_blocks * block_size
        )
        self._rank = priority_rank if config.queue_order == "priority" else arrival_rank
        self._start_rate = StartRate()
        self._reserve = GrowthReserve(block_size)
        pace = PrefillPace()
        self._state = SchedulerState(
            kv_cache=kv_cache,
            block_size=block_size,
            queue=make_queue(_queue_order(config), ageing_s=config.ageing_s, pace=pace),
            handover=KVHandover(kv_cache),
            step_times=self._step_times,
            prefill_pace=pace,
            num_stages=num_stages,
        )
        candidates = CandidateSource(self._state, self._reserve)
        self._planner = StepPlanner(
            self._state,
            candidates,
            self._reserve,
            POLICY_FUNCTIONS[config.policy],
            token_budget=max_num_batched_tokens,
            max_chunk_tokens=_max_chunk_tokens(config, max_num_batched_tokens),
            speculator=speculator,
        )
        self._repeated = RepeatedDecodes(self._state, self._planner, candidates, self._reserve, self._start_rate)
        self._deadlines = Deadlines(self._state.requests)
        self._num_added = 0

    @property
    def num_requests(self) -> int:
        return len(self._state.requests)

    @property
    def kv_handover(self) -> KVHandover:
        """Where a driver sees what KV to bring, says that it is here, and holds blocks for readers elsewhere."""
        return self._state.handover

    @property
    def repeated_decodes(self) -> RepeatedDecodes:
        """The way to take many steps that differ in nothing but their positions."""
        return self._repeated

    def num_repeatable_steps(self) -> int:
        """How many next steps `repeated_decodes` may take at once; 0: plan them."""
        if self._speculator is not None or self._deadlines or self._config.policy == "static":
            return 0
        if self._config.policy == "slo_budget" and not isinstance(self._step_times, KnownStepTimes):
            return 0  # each step may teach it something
        return self._repeated.num_steps(num_free_places=self._num_free_places)

    @property
    def _num_free_places(self) -> int:
        return self._max_running - len(self._state.running) - self._state.handover.num_holding

    @property
    def max_steps_in_flight(self) -> int:
        return self._max_steps_in_flight

    def status(self) -> SchedulerStatus:
        cache = self._state.kv_cache
        return SchedulerStatus(
            num_running=len(self._state.running),
            num_waiting=len(self._state.queue),
            num_waiting_tokens=self._state.queue.num_tokens,
            num_free_blocks=cache.num_free_blocks,
            num_evictable_blocks=cache.num_evictable_blocks,
            num_total_blocks=cache.num_total_blocks,
        )

    def add_request(self, new: NewRequest, now: float) -> list[RequestEvent]:
        """Queue `new` and return its first event.

        Raises InvalidRequestError (an id in use, an empty prompt), RequestTooLongError (it could never finish here)
        or QueueFullError; nothing has changed then. Samples of a request that was accepted are not refused for
        queue bounds.
        """
        if new.request_id in self._state.requests:
            raise InvalidRequestError(f"request id {new.request_id!r} is in use", param="request_id")
        num_prompt_tokens = check_request(new)
        max_total_tokens = total_tokens_limit(new, num_prompt_tokens, self._limits)
        if new.fork_of not in self._state.requests:
            check_queue(self._queue_load(), num_prompt_tokens)
        self._num_added += 1
        rank = self._rank(new, now, self._num_added, self._config.ageing_s)
        request = track(new, max_total_tokens=max_total_tokens, rank=rank, now=now)
        request.targets = self._targets(new, num_prompt_tokens, now)
        self._state.requests[request.id] = request
        if new.num_incoming_tokens:
            self._state.handover.asked[request.id] = request
        else:
            self._state.queue.add(request)
        if new.deadline_s is not None:
            self._deadlines.add(new.deadline_s, request)
        return [Queued(request.id, now, num_prompt_tokens, new.ttft_ms, new.tpot_ms)]

    def abort_request(
        self, request_id: RequestId, now: float, *, reason: FinishReason = FinishReason.ABORT
    ) -> list[RequestEvent]:
        """Finish the request and free its blocks. Returns its last events, none if it is not known (any more)."""
        request = self._state.requests.get(request_id)
        if request is None:
            return []
        self._finish(request, reason, now)
        return self.take_events(now).events

    def hand_over(self, request_id: RequestId, now: float) -> int | None:
        """End a request here that goes on at another engine. Returns of how many of its tokens the KV is held for that.

        The blocks are leased as those of a request that `leases_kv`; none where it waits to be computed again, 0 then.
        None, changing nothing, if it is not known (any more), has no output yet, or awaits KV from elsewhere.
        """
        request = self._state.requests.get(request_id)
        if request is None or request.num_output_tokens == 0 or request_id in self._state.handover:
            return None
        num_tokens = request.num_computed_tokens if request.table is not None else 0
        self._finish(request, FinishReason.ABORT, now, keeps_kv=True)
        return num_tokens

    def forgo_kv(self, request_id: RequestId) -> bool:
        """Let a request that awaits memory for KV from elsewhere start like any other: nobody holds that KV for it.

        Returns whether there was such a request. One whose blocks are reserved is told by `kv_handover.arrive` instead.
        """
        request = self._state.handover.asked.pop(request_id, None)
        if request is not None:
            self._state.queue.add(request)
        return request is not None

    def schedule(self, now: float) -> StepPlan | None:
        """Plan the next step, or None if nothing can be planned now.

        Events of the decision (starts, preemptions, expired deadlines) come with the next result or `take_events`.
        """
        state = self._state
        self._drop_expired(now)
        state.handover.expire_leases(now)
        self._planner.reserve_for_kv(max_requests=self._num_free_places)
        self._planner.join_arrived(now)
        if not state.requests or len(state.open_steps) >= self._max_steps_in_flight:
            return None
        step = self._planner.plan(now, max_candidates=self._num_free_places)
        if step is None:
            # What was granted to waiting requests did not fit after all: let the running ones have the step. Or the
            # last one that ran gave up its blocks: it starts again.
            step = self._planner.plan(now, max_candidates=0 if state.running else self._num_free_places)
        if step is None:
            return None
        state.open_steps.append(step)
        return step.plan

    def update_from_output(self, plan: StepPlan, result: StepResult, now: float) -> EventBatch:
        """Apply the result of `plan`, the oldest open one, and return all events since the last call.

        Raises ValueError, changing nothing, if the result does not have the plan's shape.
        """
        step = self._oldest_step(plan)
        outcome = apply_result(step, result, now, self._state.events)
        del self._state.open_steps[0]
        self._step_times.observe(step.work, result.step_time_s)
        if step.chunks:
            sizes = plan.num_scheduled_tokens[len(step.decodes) :]
            self._state.prefill_pace.note_step(list(zip(step.chunks, sizes, strict=True)), result.step_time_s)
        if self._speculator is not None:
            self._teach(self._speculator, step, outcome, result.step_time_s)
        for request in outcome.filled:
            self._note_filled(request)
        for request, error in outcome.failed:
            self._finish(request, FinishReason.ERROR, now, error=error)
        for request, token in outcome.stopped:
            self._finish(request, FinishReason.STOP, now, stop_token_id=token)
        for request in outcome.filled:
            if request.is_complete:
                self._finish(request, FinishReason.LENGTH, now)
        for request, _, _ in outcome.verified:
            self._give_back_blocks(request)
        self._reserve.note_steps(1)
        self._start_rate.note_step(
            num_started=step.num_started, num_tokens=step.num_started_tokens, step_time_s=result.step_time_s
        )
        return self._close_turn(now, self._summary(step, result, now))

    def fail_step(self, plan: StepPlan, error: str, now: float) -> EventBatch:
        """`plan`, the oldest open one, gave no result: fail its requests, free their blocks, keep all others."""
        step = self._oldest_step(plan)
        state = self._state
        del state.open_steps[0]
        for request in step.decodes + step.chunks:
            if request not in step.stale:
                self._finish(request, FinishReason.ERROR, now, error=error)
        # The executor may have failed before it forgot these: tell it again.
        state.dropped = [id_ for id_ in plan.dropped_request_ids if id_ not in state.running.by_id] + state.dropped
        return self._close_turn(now, None)

    def take_events(self, now: float) -> EventBatch:
        """Return the events that no step result has carried yet (say, of deadlines that expired while idle)."""
        return self._close_turn(now, None)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes that no request holds. Returns whether the cache is then empty."""
        return self._state.kv_cache.reset()

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself. Slow."""
        check_scheduler(self._state, max_running=self._max_running)

    @property
    def step_times(self) -> StepTimeModel:
        """How long steps take here, as far as it has been learnt."""
        return self._step_times

    def _targets(self, new: NewRequest, num_prompt_tokens: int, now: float) -> LatencyTargets:
        config = self._config
        return latency_targets(
            new,
            now,
            num_prompt_tokens=num_prompt_tokens,
            default_ttft_ms=config.default_ttft_ms,
            default_tpot_ms=config.default_tpot_ms,
            ageing_s=config.ageing_s,
            step_times=self._step_times,
        )

    def _queue_load(self) -> QueueLoad:
        return QueueLoad(
            num_waiting=len(self._state.queue),
            num_waiting_tokens=self._state.queue.num_tokens,
            num_free_seqs=self._num_free_places,
            max_num_queued_reqs=self._config.max_num_queued_reqs,
            max_num_queued_tokens=self._config.max_num_queued_tokens,
            started_per_s=self._start_rate.started_per_s,
            tokens_per_s=self._start_rate.tokens_per_s,
        )

    def _drop_expired(self, now: float) -> None:
        for request, late_s in self._deadlines.expired(now):
            text = f"the deadline passed {late_s:.3f} s ago, after {request.num_output_tokens} output tokens"
            self._finish(request, FinishReason.ERROR, now, error=text)

    def _oldest_step(self, plan: StepPlan) -> PlannedStep:
        open_steps = self._state.open_steps
        if not open_steps or open_steps[0].plan is not plan:
            raise ValueError(f"step {plan.step_id} is not the oldest open one")
        return open_steps[0]

    def _note_filled(self, request: TrackedRequest) -> None:
        """Tell the cache of blocks that became full."""
        assert request.table is not None
        self._state.kv_cache.commit(request.table, request.token_ids, num_computed_tokens=request.num_computed_tokens)
        request.set_attention(self._state.block_size)

    @staticmethod
    def _teach(speculator: Speculator, step: PlannedStep, outcome: StepOutcome, step_time_s: float) -> None:
        for request, num_drafts, num_accepted in outcome.verified:
            speculator.note_verified(request.id, num_drafts, num_accepted)
        speculator.note_step(
            num_base_tokens=step.num_prefill_tokens + len(step.decodes),
            num_draft_tokens=sum(step.num_drafts.values()),
            step_time_s=step_time_s,
        )

    def _give_back_blocks(self, request: TrackedRequest) -> None:
        """Free what drafts took and their refusal left empty."""
        if request.table is not None:
            self._state.kv_cache.shrink(request.table, num_tokens=request.num_tokens)
            request.num_covered_tokens = len(request.table.block_ids) * self._state.block_size
            request.set_attention(self._state.block_size)

    def _finish(
        self,
        request: TrackedRequest,
        reason: FinishReason,
        now: float,
        *,
        stop_token_id: int | None = None,
        error: str | None = None,
        keeps_kv: bool = False,
    ) -> None:
        """End `request`, wherever it is, and free its blocks. No effect if it has ended already.

        keeps_kv: hold them for a reader instead, if it runs.
        """
        state = self._state
        if request.state in (RequestState.FINISHED, RequestState.LEASED):
            return
        is_leased = keeps_kv or (request.new.leases_kv and reason in (FinishReason.STOP, FinishReason.LENGTH))
        if request.id in state.running.by_id:
            state.stop_running(request, keep_blocks=is_leased)
        elif request.id in state.handover:
            state.handover.drop(request)
        else:
            state.queue.remove(request)
        del state.requests[request.id]
        if self._speculator is not None:
            self._speculator.forget(request.id)
        request.state = RequestState.FINISHED
        if is_leased and request.table is not None:
            request.state = RequestState.LEASED
            state.handover.lease(request.id, request.table, now)
        request.finish_reason = reason
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._reserve.note_finished(request.num_output_tokens)
        state.events.append(
            Finished(
                request.id,
                now,
                reason,
                request.num_prompt_tokens,
                request.num_output_tokens,
                request.num_cached_tokens,
                request.num_preemptions,
                stop_token_id,
                error,
            )
        )

    def _summary(self, step: PlannedStep, result: StepResult, now: float) -> StepSummary:
        status = self.status()
        plan = step.plan
        return StepSummary(
            step_id=plan.step_id,
            time_s=now,
            step_time_s=result.step_time_s,
            num_scheduled_tokens=plan.num_total_tokens,
            num_prefill_tokens=step.num_prefill_tokens,
            num_decode_tokens=len(step.decodes),
            num_padding_tokens=plan.num_padding_tokens,
            num_running=status.num_running,
            num_waiting=status.num_waiting,
            num_free_blocks=status.num_free_blocks,
            num_evictable_blocks=status.num_evictable_blocks,
            num_total_blocks=status.num_total_blocks,
            num_draft_tokens=sum(step.num_drafts.values()),
        )

    def _close_turn(self, now: float, summary: StepSummary | None) -> EventBatch:
        events, self._state.events = self._state.events, []
        if self._config.check_invariants:
            self.check_invariants()
        return EventBatch(time_s=now, events=events, step=summary)


def _queue_order(config: SchedulerConfig) -> str:
    if config.queue_order != "auto":
        return config.queue_order
    return "slack" if config.policy == "slo_budget" else "fcfs"


def _max_chunk_tokens(config: SchedulerConfig, token_budget: int) -> int:
    if config.long_prefill_token_threshold:
        return config.long_prefill_token_threshold
    if config.queue_order == "shortest_prefill_first":
        return max(token_budget // 2, 1)  # leaves room for short prompts to overtake a long one
    return token_budget
