"""Dynamic SplitFuse (DeepSpeed-FastGen): every step carries exactly the budget while there is work for it.

Throughput as a function of tokens per step is concave, so equal steps are best: long prompts are split over steps and
short prompts and decodes are fused in to fill each one exactly. Order of filling: (1) decodes; (2) a quarter of the
rest for the first prompt, so that short ones cannot starve it; (3) prompts, begun or waiting, that fit whole; (4) what
is left goes to the prompts that were too long, in the same order.
"""

from __future__ import annotations

from kvist.core.request import Request
from kvist.scheduler.policy import Candidate, Grants, PolicyView

FIRST_SHARE = 4  # the first prompt gets at least 1/4 of what the decodes leave
NUM_LOOKED_AHEAD = 4  # candidates looked at beyond those that would fill the step, to find short ones


def split_fuse(view: PolicyView, token_budget: int) -> Grants:
    """Grant exactly `token_budget` tokens if the view holds that many; `max_chunk_tokens` does not apply."""
    grants = Grants(decodes=view.decoding[:token_budget])
    room = token_budget - len(grants.decodes)
    if room <= 0:
        return grants
    wanted: list[tuple[Request, int]] = [(request, request.num_tokens_to_schedule) for request in view.prefilling]
    wanted += _draw(view, room - sum(num_tokens for _, num_tokens in wanted))
    granted = [0] * len(wanted)
    if wanted:
        granted[0] = min(wanted[0][1], -(-room // FIRST_SHARE))
        room -= granted[0]
    for index, (_, num_tokens) in enumerate(wanted):
        missing = num_tokens - granted[index]
        if missing <= room:
            granted[index] += missing
            room -= missing
    for index, (_, num_tokens) in enumerate(wanted):
        more = min(num_tokens - granted[index], room)
        granted[index] += more
        room -= more
    grants.chunks = [(request, num) for (request, _), num in zip(wanted, granted, strict=True) if num > 0]
    return grants


def _draw(view: PolicyView, room: int) -> list[Candidate]:
    """Candidates for `room` tokens and a few more. None if there is no room: each one drawn costs a look-up."""
    drawn: list[Candidate] = []
    num_ahead = 0
    if room <= 0:
        return drawn
    for candidate in view.waiting:
        drawn.append(candidate)
        num_ahead += room <= 0
        room -= candidate.num_new_tokens
        if num_ahead >= NUM_LOOKED_AHEAD:
            break
    return drawn
