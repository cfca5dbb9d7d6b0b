"""Dynamic SplitFuse (DeepSpeed-FastGen): every step carries exactly the budget while there is work for it.

Throughput as a function of tokens per step is concave, so equal steps are best: long prompts are split over steps and
short prompts and decodes are fused in to fill each one exactly. Order of filling: (1) decodes; (2) a quarter of the
rest for the oldest prompt begun, so that short ones cannot starve it; (3) prompts, begun or waiting, that fit whole;
(4) what is left goes to the prompts that were too long, in the same order.
"""

from __future__ import annotations

from kvist.core.request import Request
from kvist.scheduler.policy import Grants, PolicyView

OLDEST_SHARE = 4  # the oldest begun prompt gets at least 1/4 of what the decodes leave


def split_fuse(view: PolicyView, token_budget: int) -> Grants:
    """Grant exactly `token_budget` tokens if the view holds that many; `max_chunk_tokens` does not apply."""
    grants = Grants(decodes=view.decoding[:token_budget])
    room = token_budget - len(grants.decodes)
    if room <= 0:
        return grants
    wanted: list[tuple[Request, int]] = [(request, request.num_tokens_to_schedule) for request in view.prefilling]
    # Enough candidates to fill the step, one at a time: what is drawn is looked up in the tree.
    num_wanted = sum(num_tokens for _, num_tokens in wanted)
    if num_wanted < room:
        for candidate in view.waiting:
            wanted.append(candidate)
            num_wanted += candidate.num_new_tokens
            if num_wanted >= room:
                break
    granted = [0] * len(wanted)
    if view.prefilling:
        granted[0] = min(wanted[0][1], -(-room // OLDEST_SHARE))
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
