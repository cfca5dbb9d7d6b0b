"""Random numbers as a pure function of (seed, sample index, output position): no generator state exists anywhere.

The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): ten rounds of
two 32x32 -> 64 bit products. All arithmetic is on unsigned 32-bit words, so any language gives the same bits.
"""

from __future__ import annotations

import hashlib

WORD = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
NUM_ROUNDS = 10

Words4 = tuple[int, int, int, int]


def philox4x32(counter: Words4, key: tuple[int, int]) -> Words4:
    """Four random 32-bit words for a 128-bit counter and a 64-bit key, all little end first."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(NUM_ROUNDS):
        first, second = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ k0, second & WORD, (first >> 32) ^ c3 ^ k1, first & WORD
        k0, k1 = (k0 + KEY_STEPS[0]) & WORD, (k1 + KEY_STEPS[1]) & WORD
    return c0, c1, c2, c3


def uniform(seed: int, sample_index: int, output_position: int) -> float:
    """A number in [0, 1), a multiple of 2**-52, for the token at `output_position` of one sample.

    The key is the seed modulo 2**64; the counter is (output_position, sample_index, 0, 0). The first word gives the
    upper 32 bits, the upper 20 bits of the second word the rest. Steps of 2**-52 keep u * total below total.
    """
    counter = (output_position & WORD, sample_index & WORD, 0, 0)
    high, low, _, _ = philox4x32(counter, (seed & WORD, (seed >> 32) & WORD))
    return (high << 20 | low >> 12) * 2.0**-52


def seed_for(request_id: str, engine_seed: int) -> int:
    """The seed of a request that brings none: fixed for its life, different from every other request's."""
    digest = hashlib.blake2b(f"{engine_seed}/{request_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
