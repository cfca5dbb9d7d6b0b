"""Speed and memory of the KV cache without a model: match, insert and evict a 100k-token prompt; bytes a cached block.

"Serve" is all that one prompt costs: match, admit, grow, commit, release.

Run: python -m benchmarks.kv_cache
"""

from __future__ import annotations

import gc
import random
import sys
import tracemalloc
from collections.abc import Callable

from benchmarks.result_file import cpu_time_s, spread, take_no_options, write_result
from kvist.core.request import PUBLIC_DOMAIN, RequestId, pack_token_ids
from kvist.kvcache.kv_cache import BlockTable, KVCache

SEED = 20261130
BLOCK_SIZE = 16
PROMPT_TOKENS = 100_000
TREE_BLOCKS = 100_000
EVICTION_BLOCKS = 20_000
VOCABULARY = 49_152
NUM_REPEATS = 9
NUM_WARM_UP = 1


class Load:
    """Drives one cache as a scheduler would, in chunks of `chunk_tokens`."""

    def __init__(self, num_blocks: int) -> None:
        self.cache = KVCache(num_blocks=num_blocks, block_size=BLOCK_SIZE)
        self._num_requests = 0

    def admit(self, packed: bytes) -> BlockTable:
        self._num_requests += 1
        match = self.cache.match(PUBLIC_DOMAIN, packed, max_tokens=len(packed) // 4 - 1)
        return self.cache.admit(RequestId(f"r{self._num_requests}"), PUBLIC_DOMAIN, packed, match)

    def serve(self, packed: bytes) -> None:
        """Match and admit a prompt, give it blocks, insert them."""
        table = self.admit(packed)
        num_tokens = len(packed) // 4
        write_from = table.num_committed_blocks * BLOCK_SIZE
        self.cache.grow(table, num_tokens=num_tokens, write_from=write_from)
        self.cache.commit(table, packed, num_computed_tokens=num_tokens)
        self.cache.release(table)


def random_tokens(generator: random.Random, num_tokens: int) -> list[int]:
    return generator.choices(range(VOCABULARY), k=num_tokens)


def repeat(measure: Callable[[random.Random], float]) -> list[float]:
    name = measure.__name__  # so that no two measurements use the same prompts
    values = [measure(random.Random(f"{SEED} {name} {number}")) for number in range(NUM_WARM_UP + NUM_REPEATS)]
    return [value * 1000 for value in values[NUM_WARM_UP:]]


def filled_load(generator: random.Random, num_blocks: int) -> Load:
    """A cache whose tree holds `num_blocks` blocks: prompts of 1,600 tokens that share a prefix of 256."""
    load = Load(num_blocks * 5 // 4)
    prefix = random_tokens(generator, 256)
    while load.cache.tree.num_blocks < num_blocks:
        load.serve(pack_token_ids(prefix + random_tokens(generator, 1344)))
    return load


def measure_floor(generator: random.Random) -> float:
    """Compare the prompt's bytes once and copy them once: no cache that stores and checks tokens does less."""
    packed = pack_token_ids(random_tokens(generator, PROMPT_TOKENS))
    same = bytes(bytearray(packed))
    return cpu_time_s(lambda: (packed == same, bytearray(packed)))


def evict_from(full: Load) -> float:
    """Seconds to take blocks for a 100k-token prompt in a pool where none is free."""
    table = full.admit(pack_token_ids([1]))
    num_held = full.cache.num_free_blocks
    full.cache.grow(table, num_tokens=num_held * BLOCK_SIZE, write_from=0)
    num_tokens = num_held * BLOCK_SIZE + PROMPT_TOKENS
    return cpu_time_s(lambda: full.cache.grow(table, num_tokens=num_tokens, write_from=num_held * BLOCK_SIZE))


def measure_speed() -> dict[str, object]:
    load = filled_load(random.Random(SEED), TREE_BLOCKS)

    def insert(generator: random.Random) -> float:
        packed = pack_token_ids(random_tokens(generator, PROMPT_TOKENS))
        return cpu_time_s(lambda: load.serve(packed))

    def hit(generator: random.Random) -> float:
        packed = pack_token_ids(random_tokens(generator, PROMPT_TOKENS))
        load.serve(packed)
        return cpu_time_s(lambda: load.serve(packed))

    def match_only(generator: random.Random) -> float:
        packed = pack_token_ids(random_tokens(generator, PROMPT_TOKENS))
        load.serve(packed)
        return cpu_time_s(lambda: load.cache.match(PUBLIC_DOMAIN, packed, max_tokens=PROMPT_TOKENS))

    def evict(generator: random.Random) -> float:
        """Out of leaves of 84 blocks, for one prompt."""
        return evict_from(filled_load(generator, EVICTION_BLOCKS))

    def evict_singles(generator: random.Random) -> float:
        """Out of leaves of one block each, for one prompt."""
        full = Load(EVICTION_BLOCKS)
        star_of_blocks(full, generator, EVICTION_BLOCKS)
        return evict_from(full)

    def decode_commit(generator: random.Random) -> float:
        """One block of a 100k-token request becomes full: mean of 100 of them."""
        tokens = random_tokens(generator, PROMPT_TOKENS + 1600)
        packed = pack_token_ids(tokens)
        table = load.admit(packed)
        load.cache.grow(table, num_tokens=len(tokens), write_from=0)
        load.cache.commit(table, packed, num_computed_tokens=PROMPT_TOKENS)

        def commit_blocks() -> None:
            for num_computed in range(PROMPT_TOKENS + BLOCK_SIZE, len(tokens), BLOCK_SIZE):
                load.cache.commit(table, packed, num_computed_tokens=num_computed)

        duration = cpu_time_s(commit_blocks)
        load.cache.release(table)
        return duration / 99

    floor, insert_ms, hit_ms = repeat(measure_floor), repeat(insert), repeat(hit)
    floor_ms = sorted(floor)[len(floor) // 2]
    return {
        "tree_blocks": load.cache.tree.num_blocks,
        "compare_and_copy_floor": spread(floor, "ms"),
        "serve_new_prompt_100k": spread(insert_ms, "ms"),
        "serve_new_prompt_100k_to_floor": sorted(insert_ms)[len(insert_ms) // 2] / floor_ms,
        "serve_cached_prompt_100k": spread(hit_ms, "ms"),
        "serve_cached_prompt_100k_to_floor": sorted(hit_ms)[len(hit_ms) // 2] / floor_ms,
        "match_cached_prompt_100k": spread(repeat(match_only), "ms"),
        "evict_6250_blocks": spread(repeat(evict), "ms"),
        "evict_6250_leaves_of_one_block": spread(repeat(evict_singles), "ms"),
        "commit_one_decoded_block": spread([1000 * value for value in repeat(decode_commit)], "us"),
    }


def chat_multi_turn(load: Load, generator: random.Random) -> None:
    """24 sessions of 8 turns behind one prefix of 256 tokens; turns of 24-96, answers of 48-128 tokens."""
    prefix = random_tokens(generator, 256)
    sessions = [list(prefix) for _ in range(24)]
    for _ in range(8):
        for session in sessions:
            session += random_tokens(generator, generator.randint(24, 96))
            table = load.admit(pack_token_ids(session))
            write_from = table.num_committed_blocks * BLOCK_SIZE
            answer = random_tokens(generator, generator.randint(48, 128))
            for num_answered in range(0, len(answer), 8):
                packed = pack_token_ids(session + answer[:num_answered])
                load.cache.grow(table, num_tokens=len(packed) // 4, write_from=write_from)
                load.cache.commit(table, packed, num_computed_tokens=len(packed) // 4)
                write_from = len(packed) // 4
            load.cache.release(table)
            session += answer


def one_block_per_node(load: Load, generator: random.Random, num_blocks: int = 20_000) -> None:
    """Every node holds one block: a binary tree of prompts, each one block off another."""
    stems = [random_tokens(generator, BLOCK_SIZE)]
    while load.cache.tree.num_blocks < num_blocks:
        stem = stems.pop(0)
        for _ in range(2):
            grown = stem + random_tokens(generator, BLOCK_SIZE)
            load.serve(pack_token_ids([*grown, 1]))
            stems.append(grown)


def star_of_blocks(load: Load, generator: random.Random, num_blocks: int = 20_000) -> None:
    """Every node holds one block and hangs on the root."""
    for _ in range(num_blocks):
        load.serve(pack_token_ids([*random_tokens(generator, BLOCK_SIZE), 1]))


def bytes_per_block(fill: Callable[[Load, random.Random], None], num_blocks: int) -> dict[str, float]:
    """All memory that filling the cache takes, pool and eviction queue included, over the blocks in the tree."""
    gc.collect()
    tracemalloc.start()
    load = Load(num_blocks)
    empty = tracemalloc.get_traced_memory()[0]
    fill(load, random.Random(SEED))
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - empty
    tracemalloc.stop()
    tree = load.cache.tree
    return {
        "per_block": used / tree.num_blocks,
        "num_blocks": tree.num_blocks,
        "num_nodes": tree.num_nodes,
    }


def main() -> int:
    results = measure_speed()
    results["bytes_chat_multi_turn"] = bytes_per_block(chat_multi_turn, 3_000)
    results["bytes_one_block_per_node"] = bytes_per_block(one_block_per_node, 22_000)
    results["bytes_one_block_per_node_star"] = bytes_per_block(star_of_blocks, 22_000)
    limits = (
        "serving a prompt: loops of the interpreter over block ids in BlockPool (release, mark_cached, allocate; about "
        "0.1 us a block each) take four fifths of the time, comparing and copying tokens less than a tenth; evicting "
        "leaves of one block: finding each in its parent's sorted children and in the heap (about 8 us a leaf); "
        "memory: 64 bytes of tokens a block are the floor, the rest is the node (about 430 bytes each)"
    )
    path = write_result("kv_cache", results, seed=SEED, num_warm_up=NUM_WARM_UP, limits=limits)
    print(path.read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    take_no_options(__doc__)
    sys.exit(main())
