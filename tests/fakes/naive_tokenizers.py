"""Tokenizers written as plainly as possible, to check the real ones against."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from kvist.tokenization.byte_alphabet import CHARACTER_OF_BYTE


def sentencepiece_encode(text: str, ids: Mapping[str, int], scores: Mapping[str, float]) -> list[int]:
    """Join the neighbours with the best-scored joint piece, the leftmost of equals, until none can be joined."""
    symbols = list(text)
    while True:
        joint_pieces = enumerate(left + right for left, right in pairwise(symbols))
        joints = [(scores[piece], -i) for i, piece in joint_pieces if piece in scores]
        if not joints:
            break
        i = -max(joints)[1]
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
    encoded: list[int] = []
    for symbol in symbols:
        encoded += [ids[symbol]] if symbol in ids else [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
    return encoded


def byte_level_encode(
    text: str, words: Callable[[str], Sequence[str]], ids: Mapping[str, int], ranks: Mapping[tuple[str, str], int]
) -> list[int]:
    """Cut into words; in each, join the neighbours whose merge has the lowest rank until none can be joined."""
    encoded: list[int] = []
    for word in words(text):
        symbols = [CHARACTER_OF_BYTE[byte] for byte in word.encode()]
        while True:
            pairs = list(pairwise(symbols))
            best = min(pairs, key=lambda pair: ranks.get(pair, len(ranks)), default=None)
            if best is None or best not in ranks:
                break
            i = pairs.index(best)
            symbols[i : i + 2] = [best[0] + best[1]]
        encoded += [ids[symbol] for symbol in symbols]
    return encoded
