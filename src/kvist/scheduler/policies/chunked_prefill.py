"""Stall-free batching (Sarathi-Serve, OSDI'24): decodes first and always, then chunks of prompts fill the budget.

Order of filling: (1) each running request that decodes gets its token; (2) each prompt already begun gets a chunk of
what is left; (3) waiting requests start with what is then left. A decode is never paused for a prompt, so a step
takes no longer than its budget allows, however long the prompts are.
"""

from __future__ import annotations

from kvist.scheduler.policy import Grants, PolicyView


def chunked_prefill(view: PolicyView, token_budget: int) -> Grants:
    """Grant decodes, then chunks of begun prompts, then chunks of new ones, each within `max_chunk_tokens`."""
    grants = Grants(decodes=view.decoding[:token_budget])
    room = token_budget - len(grants.decodes)
    for request in view.prefilling:
        if room <= 0:
            return grants
        num_tokens = min(request.num_tokens_to_schedule, view.max_chunk_tokens, room)
        grants.chunks.append((request, num_tokens))
        room -= num_tokens
    if room <= 0:
        return grants
    for request, num_new_tokens in view.waiting:
        num_tokens = min(num_new_tokens, view.max_chunk_tokens, room)
        grants.chunks.append((request, num_tokens))
        room -= num_tokens
        if room <= 0:
            break
    return grants
