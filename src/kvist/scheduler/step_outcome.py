"""Applies a step's result to its rows: progress, new tokens, stops. The hot loop of the scheduler.

Costs a few attribute reads and one event per decoding request; all else waits for a threshold to be passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvist.core.request_events import PromptScored, RequestEvent, TokensSampled
from kvist.core.step_result import StepResult, TokenLogprobs
from kvist.scheduler.plan_builder import PlannedStep
from kvist.scheduler.tracked_request import TrackedRequest


@dataclass(slots=True)
class StepOutcome:
    """Who needs a closer look. A request may stand in `filled` and in one of the others."""

    filled: list[TrackedRequest] = field(default_factory=list)  # passed `attention_computed`
    stopped: list[tuple[TrackedRequest, int]] = field(default_factory=list)  # with the stop token
    failed: list[tuple[TrackedRequest, str]] = field(default_factory=list)
    verified: list[tuple[TrackedRequest, int, int]] = field(default_factory=list)  # drafts, accepted ones


def apply_result(step: PlannedStep, result: StepResult, now: float, events: list[RequestEvent]) -> StepOutcome:
    """Advance the step's requests and append their events. Raises ValueError, changing nothing, on a result of
    another shape than the plan.
    """
    sampled = result.sampled_token_ids
    if result.step_id != step.plan.step_id or len(sampled) != len(step.plan.request_ids):
        raise ValueError(
            f"step {step.plan.step_id} has {len(step.plan.request_ids)} rows; "
            f"the executor answered step {result.step_id} with {len(sampled)}"
        )
    outcome = StepOutcome()
    if result.prompt_logprobs:
        _score_prompts(step, result, events)
    _apply_decodes(step, sampled, result.logprobs, now, events, outcome)
    _apply_chunks(step, sampled, result.logprobs, now, events, outcome)
    if result.errors:
        by_id = {request.id: request for request in step.decodes + step.chunks if request not in step.stale}
        outcome.filled = [request for request in outcome.filled if request.id not in result.errors]
        outcome.failed = [pair for pair in outcome.failed if pair[0].id not in result.errors]
        outcome.failed += [(by_id[id_], text) for id_, text in result.errors.items() if id_ in by_id]
    return outcome


def _apply_decodes(
    step: PlannedStep,
    sampled: Sequence[Sequence[int]],
    logprobs: dict[int, list[TokenLogprobs]],
    now: float,
    events: list[RequestEvent],
    outcome: StepOutcome,
) -> None:
    stale = step.stale
    filled = outcome.filled
    num_drafts = step.num_drafts
    add_event = events.append
    for row, request in enumerate(step.decodes):
        if stale and request in stale:
            continue
        request.num_in_flight_tokens -= 1
        request.num_in_flight_samples -= 1
        tokens = sampled[row]
        if not tokens:
            outcome.failed.append((request, "the executor sampled no token"))
            continue
        if num_drafts and request.id in num_drafts:
            _apply_verified(request, num_drafts[request.id], list(tokens), logprobs.get(row), now, events, outcome)
            continue
        request.num_computed_tokens = num_computed = request.num_computed_tokens + 1
        token = tokens[0]
        request.token_ids.append(token)
        add_event(TokensSampled(request.id, now, [token], logprobs.get(row) if logprobs else None))
        if num_computed >= request.attention_computed:
            filled.append(request)
        if token in request.stop_ids and len(request.token_ids) >= request.min_total_tokens:
            outcome.stopped.append((request, token))


def _apply_verified(
    request: TrackedRequest,
    num_drafts: int,
    tokens: list[int],
    logprobs: list[TokenLogprobs] | None,
    now: float,
    events: list[RequestEvent],
    outcome: StepOutcome,
) -> None:
    """Take the accepted drafts and the token after them, up to the first that stops the request."""
    if len(tokens) > num_drafts + 1:
        outcome.failed.append((request, f"the executor sampled {len(tokens)} tokens for {num_drafts} drafts"))
        return
    outcome.verified.append((request, num_drafts, len(tokens) - 1))
    first_that_may_stop = max(request.min_total_tokens - len(request.token_ids) - 1, 0)
    for index in range(first_that_may_stop, len(tokens)):
        if tokens[index] in request.stop_ids:
            outcome.stopped.append((request, tokens[index]))
            del tokens[index + 1 :]
            break
    # Each token follows one that has been computed; nothing is known of the KV past the last accepted draft.
    request.num_computed_tokens += len(tokens)
    request.token_ids.extend(tokens)
    kept_logprobs = None if logprobs is None else logprobs[: len(tokens)]
    events.append(TokensSampled(request.id, now, tokens, kept_logprobs, num_drafts))
    if request.num_computed_tokens >= request.attention_computed:
        outcome.filled.append(request)


def _apply_chunks(
    step: PlannedStep,
    sampled: Sequence[Sequence[int]],
    logprobs: dict[int, list[TokenLogprobs]],
    now: float,
    events: list[RequestEvent],
    outcome: StepOutcome,
) -> None:
    plan = step.plan
    for row, request in enumerate(step.chunks, start=len(step.decodes)):
        if request in step.stale:
            continue
        num_tokens = plan.num_scheduled_tokens[row]
        request.num_in_flight_tokens -= num_tokens
        request.num_in_flight_samples -= plan.samples[row]
        tokens = sampled[row]
        if bool(tokens) != plan.samples[row]:
            outcome.failed.append((request, f"the executor sampled {len(tokens)} tokens in a chunk of its prompt"))
            continue
        request.num_computed_tokens += num_tokens
        if request.num_computed_tokens >= request.attention_computed:
            outcome.filled.append(request)
        if tokens:
            token = tokens[0]
            request.token_ids.append(token)
            if request.first_token_s is None:
                request.first_token_s = now
            events.append(TokensSampled(request.id, now, [token], logprobs.get(row)))
            if token in request.stop_ids and len(request.token_ids) >= request.min_total_tokens:
                outcome.stopped.append((request, token))


def _score_prompts(step: PlannedStep, result: StepResult, events: list[RequestEvent]) -> None:
    """Hand out prompt log-probabilities, each position once, also if a preemption makes it computed again."""
    num_decodes = len(step.decodes)
    for row, entries in sorted(result.prompt_logprobs.items()):
        if row < num_decodes:
            continue
        request = step.chunks[row - num_decodes]
        num_known = max(request.num_scored_tokens - step.plan.start_positions[row], 0)
        if request in step.stale or num_known >= len(entries):
            continue
        request.num_scored_tokens += len(entries) - num_known
        events.append(PromptScored(request.id, entries[num_known:]))
