"""Request-level batching, padded (the papers' baseline): a batch is formed, runs until all are done, then the next.

Every row is as long as the longest: in the prefill step prompts are padded to the longest one, and in decode steps
rows that are already done are still computed. The padding is planned, counted and executed.
"""

from __future__ import annotations

from kvist.core.request import Request
from kvist.scheduler.policy import Grants, PolicyView


def static(view: PolicyView, token_budget: int) -> Grants:
    """Grant one padded step of the current batch, or form a batch when nothing runs."""
    if view.prefilling:
        return _prefill_step([(request, request.num_tokens_to_schedule) for request in view.prefilling], token_budget)
    if view.decoding:
        decodes = view.decoding[:token_budget]
        num_done = max(view.num_admitted_since_idle - len(view.decoding), 0)
        return Grants(decodes=decodes, num_padding_tokens=min(num_done, token_budget - len(decodes)))
    if view.num_admitted_since_idle:
        return Grants()  # the batch's last tokens are still in flight
    batch: list[tuple[Request, int]] = []
    longest = 0
    for request, num_new_tokens in view.waiting:
        padded = max(longest, num_new_tokens) * (len(batch) + 1)
        if batch and padded > token_budget:
            break
        batch.append((request, num_new_tokens))
        longest = max(longest, num_new_tokens)
        if longest * len(batch) >= token_budget:
            break
    return _prefill_step(batch, token_budget)


def _prefill_step(rows: list[tuple[Request, int]], token_budget: int) -> Grants:
    """One step over `rows` (request, tokens left), padded to the longest. A prompt beyond the budget is cut."""
    grants = Grants()
    if not rows:
        return grants
    width = max(min(max(num_tokens for _, num_tokens in rows), token_budget // len(rows)), 1)
    for request, num_tokens in rows[: token_budget // width]:
        granted = min(num_tokens, width)
        grants.chunks.append((request, granted))
        grants.num_padding_tokens += width - granted
    return grants
