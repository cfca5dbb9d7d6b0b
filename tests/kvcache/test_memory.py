"""What the tree costs per cached block, measured, not estimated."""

from __future__ import annotations

from benchmarks.kv_cache import bytes_per_block, chat_multi_turn, one_block_per_node, star_of_blocks


def test_a_block_of_a_long_conversation_costs_little_more_than_its_tokens() -> None:
    assert bytes_per_block(chat_multi_turn, 3_000)["per_block"] <= 100


def test_a_block_alone_on_its_edge_costs_at_most_700_bytes() -> None:
    for shape in (one_block_per_node, star_of_blocks):
        assert bytes_per_block(lambda load, rng, fill=shape: fill(load, rng, 2_000), 2_500)["per_block"] <= 700
