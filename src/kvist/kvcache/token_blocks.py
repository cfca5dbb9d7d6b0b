"""Comparing packed token ids (little-endian int32) block by block, at the speed of memcmp."""

from __future__ import annotations

TOKEN_BYTES = 4


def num_common_blocks(
    ours: bytes, ours_from: int, theirs: bytes, theirs_from: int, max_blocks: int, block_bytes: int
) -> int:
    """Whole blocks, at most `max_blocks`, in which `ours[ours_from:]` and `theirs[theirs_from:]` begin alike.

    Both hold at least `max_blocks` blocks there. Reads each byte at most twice.
    """
    with memoryview(theirs) as view:

        def is_equal(first: int, last: int) -> bool:
            a, b = first * block_bytes, last * block_bytes
            with view[theirs_from + a : theirs_from + b] as part:
                return ours.startswith(part, ours_from + a)

        if is_equal(0, max_blocks):
            return max_blocks
        low, high = 0, max_blocks  # [0, low) is equal, [0, high) is not
        while high - low > 1:
            middle = (low + high) // 2
            if is_equal(low, middle):
                low = middle
            else:
                high = middle
        return low


def num_common_tokens(ours: bytes, theirs: bytes) -> int:
    """Tokens in which both begin alike. Meant for pieces of at most a block."""
    length = min(len(ours), len(theirs))
    difference = int.from_bytes(ours[:length], "little") ^ int.from_bytes(theirs[:length], "little")
    if difference == 0:
        return length // TOKEN_BYTES
    lowest_different_bit = (difference & -difference).bit_length() - 1
    return lowest_different_bit // (8 * TOKEN_BYTES)
