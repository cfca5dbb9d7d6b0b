"""How much of a load's prompts any prefix cache could have read: the bound that hit shares are measured against."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

from kvist.core.request import pack_token_ids


def possible_cached_tokens(requests: Iterable[tuple[Sequence[int], Sequence[int]]]) -> list[int]:
    """Tokens of each prompt that an unbounded cache could hold, for (prompt, output) in an order of service.

    The longest prefix shared with the prompt and the output of any request before it. Of an output the last token is
    never computed, and of a prompt at least one token always is: its logits give the first output token. Summed over
    prompts without outputs this is SGLang's optimum for any order: all tokens less the edges of the tree, each
    computed once.
    """
    known: list[bytes] = []  # sorted: the longest common prefix is that with a neighbour
    possible = []
    for prompt, output in requests:
        packed = pack_token_ids(list(prompt))
        place = bisect_left(known, packed)
        best = max((_common_tokens(packed, other) for other in known[max(place - 1, 0) : place + 1]), default=0)
        possible.append(min(best, len(prompt) - 1))
        insort(known, pack_token_ids([*prompt, *output[:-1]]))
    return possible


def _common_tokens(a: bytes, b: bytes) -> int:
    limit = min(len(a), len(b)) // 4
    low, high = 0, limit  # a[:4 low] == b[:4 low]; binary search, as bytes compare fast
    while low < high:
        middle = (low + high + 1) // 2
        if a[: 4 * middle] == b[: 4 * middle]:
            low = middle
        else:
            high = middle - 1
    return low
