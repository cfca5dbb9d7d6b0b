"""Drafts take budget and blocks that nothing else needs, change no output, and are paid back when refused."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fakes.engine_world import World, request
from tests.fakes.oracle_speculator import OracleSpeculator

from kvist.config.scheduler_config import POLICIES
from kvist.core.request import FinishReason, pack_token_ids
from kvist.core.request_events import TokensSampled
from kvist.core.step_plan import StepPlan
from kvist.scheduler.stream_limits import MAX_GAP
from kvist.simulator.simulated_executor import hashed_token
from kvist.speculation.adaptive_speculator import AdaptiveSpeculator
from kvist.speculation.proposers import ModelProposer, NgramProposer

SAMPLE = hashed_token(32_000)


def oracle(num_tokens: int = 4, wrong_every: int = 1_000_000) -> OracleSpeculator:
    return OracleSpeculator(SAMPLE, num_tokens=num_tokens, wrong_every=wrong_every)


def test_accepted_drafts_save_steps():
    world = World(speculator=oracle())
    world.run(request("a", 20, 16))
    # The prompt's step samples one token, then three steps of 1 + 4 give five each.
    assert [tokens["a"] for tokens in world.step_tokens()] == [20, 5, 5, 5]
    assert [len(event.token_ids) for event in world.of_type(TokensSampled)] == [1, 5, 5, 5]
    assert world.outputs()["a"] == [SAMPLE(request("a").sampling, 0, position) for position in range(20, 36)]


def test_refused_drafts_change_nothing_and_their_blocks_are_free_again():
    speculator = oracle(num_tokens=40, wrong_every=1)
    world = World(speculator=speculator)
    world.run(request("a", 16, 8), until_s=4.0)
    assert speculator.num_accepted == 0 < speculator.num_drafted
    status = world.scheduler.status()
    # 16 tokens of the prompt and a few of output: two blocks; the open step has taken more for its drafts.
    open_blocks = -(-(20 + 40) // 16)
    assert status.num_total_blocks - status.num_free_blocks - status.num_evictable_blocks <= open_blocks
    world.run()
    alone = World()
    alone.run(request("a", 16, 8))
    assert world.outputs() == alone.outputs()
    world.assert_at_rest()


def test_only_accepted_blocks_enter_the_prefix_tree():
    world = World(speculator=oracle(num_tokens=40, wrong_every=9))
    world.run(request("a", 16, 60))
    prompt = request("a", 16).prompt_token_ids
    text = prompt + pack_token_ids(world.outputs()["a"])
    match = world.cache.match(request("a").domain, text, max_tokens=76)
    assert match.num_tokens == world.cache.tree.num_blocks * 16 == 75 // 16 * 16  # the last token is never computed


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7])
def test_drafts_never_overrun_the_length(max_tokens):
    world = World(speculator=oracle(num_tokens=20))
    world.run(request("a", 10, max_tokens))
    assert len(world.outputs()["a"]) == max_tokens
    assert world.reasons()["a"] is FinishReason.LENGTH
    assert sum(tokens["a"] for tokens in world.step_tokens()) == 10 + max_tokens - 1


@pytest.mark.parametrize("min_tokens", [0, 5, 9])
def test_a_stop_token_among_accepted_drafts_ends_the_output_there(min_tokens):
    stop = SAMPLE(request("a").sampling, 0, 20 + 5)
    world = World(speculator=oracle(num_tokens=8))
    world.run(request("a", 20, 30, eos=(stop,), sampling={"min_tokens": min_tokens}))
    finished = world.finished()["a"]
    if min_tokens <= 6:
        assert world.outputs()["a"][-1] == stop == finished.stop_token_id
        assert finished.num_output_tokens == 6
    else:
        assert finished.reason is FinishReason.LENGTH
    world.assert_at_rest()


def test_drafts_take_only_what_the_policy_left_of_the_budget():
    world = World(speculator=oracle(num_tokens=30), budget=32)
    world.run(request("a", 16, 40), request("b", 90, 4, at=1.5))
    for plan in world.driver.plans:
        assert plan.num_total_tokens <= 32
    prompt_steps = [tokens for tokens in world.step_tokens() if tokens.get("b", 0) > 4]
    assert [tokens["a"] for tokens in prompt_steps[:2]] == [1, 1]


def test_drafts_preempt_nobody():
    plain, drafting = World(num_blocks=8), World(num_blocks=8, speculator=oracle(num_tokens=30, wrong_every=3))
    for world in (plain, drafting):
        world.run(request("a", 30, 30), request("b", 30, 30))
    assert drafting.outputs() == plain.outputs()
    assert drafting.num_preemptions() <= plain.num_preemptions()


@pytest.mark.parametrize("make", ["ngram", "model", "oracle"])
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
def test_outputs_are_those_without_speculation(policy, enable_prefix_caching, make):
    vocabulary = 6  # small, so that look-up finds and foretells a lot
    options = {
        "num_blocks": 14,
        "budget": 48,
        "vocab_size": vocabulary,
        "enable_prefix_caching": enable_prefix_caching,
        "config": {"policy": policy},
    }
    speculator = {
        "ngram": AdaptiveSpeculator(NgramProposer(min_length=1, max_length=4), max_draft_tokens=6),
        "model": AdaptiveSpeculator(ModelProposer(), max_draft_tokens=6, is_adaptive=False),
        "oracle": OracleSpeculator(hashed_token(vocabulary), num_tokens=17),
    }[make]
    requests = [
        request(
            f"r{i}",
            [*range(20), *range(100 * i, 100 * i + 9)],
            60,
            eos=(3,),
            at=i // 3,
            sampling={"seed": i, "min_tokens": 25},
        )
        for i in range(9)
    ]
    plain, drafting = World(**options), World(**options, speculator=speculator)
    for world in (plain, drafting):
        world.run(*requests)
        world.assert_at_rest()
    assert drafting.outputs() == plain.outputs()
    assert drafting.reasons() == plain.reasons()
    assert any(event.num_draft_tokens for event in drafting.of_type(TokensSampled))


def test_speculation_keeps_one_step_in_flight():
    world = World(speculator=oracle(), depth=2)
    assert world.core.max_steps_in_flight == 1
    world.run(request("a", 20, 30))
    assert len(world.outputs()["a"]) == 30


def test_what_is_known_of_a_request_is_forgotten_when_it_ends():
    speculator = oracle()
    world = World(speculator=speculator)
    world.driver.abort_at(2.5, request("b").request_id)
    world.run(request("a", 20, 10), request("b", 20, 50))
    assert {"a", "b"} <= set(speculator.forgotten)
    assert all(base > 0 for base, _ in speculator.steps)


def test_drafts_keep_a_step_within_the_time_that_its_streams_can_bear():
    def duration(plan: StepPlan) -> float:
        return 0.02 + 0.002 * plan.num_total_tokens

    options: dict[str, Any] = {"budget": 512, "duration": duration}
    requests = [request(f"r{i}", 20, 400) for i in range(3)]
    longest_s = {}
    for policy in ("chunked_prefill", "slo_budget"):
        world = World(**options, speculator=oracle(num_tokens=40), config={"policy": policy, "default_tpot_ms": 50})
        world.run(*requests)
        longest_s[policy] = max(duration(plan) for plan in world.driver.plans[8:])
        assert {len(tokens) for tokens in world.outputs().values()} == {400}
    assert longest_s["slo_budget"] <= MAX_GAP * 0.05 < longest_s["chunked_prefill"]
    assert any(event.num_draft_tokens for event in world.of_type(TokensSampled))
