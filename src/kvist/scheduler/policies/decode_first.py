"""Decodes first, prompts whole: a prompt starts only in a step that has room for all of it.

Order of filling: (1) decodes; (2) prompts already begun; (3) waiting prompts that fit whole into what is left, in
queue order, without overtaking. While nobody decodes a prompt longer than the budget is cut, so everything gets its
turn. Steady streams and uncut prompts, paid for with the time to first token.
"""

from __future__ import annotations

from kvist.scheduler.policy import Grants, PolicyView


def decode_first(view: PolicyView, token_budget: int) -> Grants:
    """Grant all decodes, then prompts that fit whole; cut a prompt only if nothing else runs."""
    grants = Grants(decodes=view.decoding[:token_budget])
    room = token_budget - len(grants.decodes)
    for request in view.prefilling:
        if room <= 0:
            return grants
        num_tokens = min(request.num_tokens_to_schedule, room)
        grants.chunks.append((request, num_tokens))
        room -= num_tokens
    if room <= 0:
        return grants
    for request, num_new_tokens in view.waiting:
        if num_new_tokens > room and (grants.decodes or grants.chunks):
            break  # the streams in front of it end, then it has the step to itself
        num_tokens = min(num_new_tokens, room)
        grants.chunks.append((request, num_tokens))
        room -= num_tokens
        if room <= 0:
            break
    return grants
