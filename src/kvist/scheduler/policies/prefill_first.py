"""Iteration-level batching with prompts first (Orca; early vLLM): a new prompt starts as soon as it fits.

Order of filling: (1) prompts already begun; (2) waiting prompts, each whole if the budget allows; (3) decodes with
what is left. Best time to first token, but running streams stall while prompts pass: the effect that chunked
prefill removes. Only a prompt longer than the whole budget is cut.
"""

from __future__ import annotations

from kvist.scheduler.policy import Grants, PolicyView


def prefill_first(view: PolicyView, token_budget: int) -> Grants:
    """Grant whole prompts in queue order, then decodes, oldest first, as far as the budget goes."""
    grants = Grants()
    room = token_budget
    for request in view.prefilling:
        if room <= 0:
            return grants
        num_tokens = min(request.num_tokens_to_schedule, room)
        grants.chunks.append((request, num_tokens))
        room -= num_tokens
    if room > 0:
        for request, num_new_tokens in view.waiting:
            if num_new_tokens > room and num_new_tokens <= token_budget:
                break  # it fits whole into a later step; no overtaking, or it might never
            num_tokens = min(num_new_tokens, room)
            grants.chunks.append((request, num_tokens))
            room -= num_tokens
            if room <= 0:
                break
    grants.decodes = view.decoding[: max(room, 0)]
    return grants
