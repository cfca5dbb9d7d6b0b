"""Chunks as long as the running streams can bear: a budget in seconds instead of tokens.

Each step takes the most prompt tokens whose predicted time keeps the tightest stream within its time per output token
(TPOT). That is a mean over the request, so a stream that is ahead lends of its lead and one with many tokens to come
borrows of them; but no gap between two tokens is planned longer than three targets: the mean is what is promised, the
gap is what a reader sees (`stream_limits.py`).

Order of filling: (1) all decodes; (2) prompts, begun or waiting, by TTFT slack, those that are too late for their
target last. A prompt starts only if the streams could bear one more stream: sooner for one that can be in time.
Speculative drafts take what the limit leaves after that.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvist.scheduler.policy import Candidate, Cut, Grants, PolicyView
from kvist.scheduler.slack import Urgency, is_in_time, urgency
from kvist.scheduler.stream_limits import StreamRoom, step_limit, work_of_streams
from kvist.scheduler.time_limit import largest_chunk, upper_s

# What a step of streams alone may take of the tightest target when one more starts: the rest is for prompts.
STREAM_SHARE = 0.7
LATE_SHARE = 0.5  # when that one is too late for its own target


def slo_budget(view: PolicyView, token_budget: int) -> Grants:
    """Grant all decodes, then prompt tokens by urgency while the predicted step time stays within the limit."""
    decodes = view.decoding[:token_budget]
    grants = Grants(decodes=decodes)
    room = token_budget - len(decodes)
    if room <= 0:
        return grants
    work = work_of_streams(decodes)
    limit_s, tightest = step_limit(decodes, view.now, upper_s(view.step_times, work))
    grants.limit_s = limit_s
    for request, num_left in _by_urgency(view):
        if room <= 0:
            break
        num_context = request.num_tokens + request.num_in_flight_samples - num_left
        num_wanted = min(num_left, view.max_chunk_tokens, room)
        num_tokens = largest_chunk(view.step_times, work, num_context, num_wanted, limit_s)
        if num_tokens < num_wanted and tightest is not None:
            grants.cuts.append(Cut(request, num_tokens, num_wanted, limit_s, tightest.targets.tpot_s))
        if num_tokens == 0:
            break
        grants.chunks.append((request, num_tokens))
        work = work.plus(num_tokens, num_context, is_sampled=num_tokens == num_left)
        room -= num_tokens
    return grants


def _by_urgency(view: PolicyView) -> Iterator[Candidate]:
    """Prompts with the tokens they have left: those that run and, drawn one by one, those that wait and may start."""

    def place(candidate: Candidate) -> Urgency:
        return urgency(candidate.request, candidate.num_new_tokens, view.now, view.prefill_slowdown)

    room = StreamRoom(view.step_times, view.decoding, view.prefilling)
    begun = [Candidate(request, request.num_tokens_to_schedule) for request in view.prefilling]
    begun.sort(key=place, reverse=True)
    waiting = iter(view.waiting)
    first = next(waiting, None)
    while begun or first is not None:
        if first is not None and (not begun or place(first) < place(begun[-1])):
            is_good = is_in_time(first.request, first.num_new_tokens, view.now, view.prefill_slowdown)
            share = STREAM_SHARE if is_good else LATE_SHARE
            if room.take(first.request, share):
                yield first
                first = next(waiting, None)
            else:
                first = None  # nobody overtakes it
            continue
        yield begun.pop()
