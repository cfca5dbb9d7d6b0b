"""What a single engine does with requests, step by step."""

from __future__ import annotations

import msgspec
import pytest
from tests.fakes.engine_world import World, request

from kvist.core.errors import InvalidRequestError, QueueFullError, RequestTooLongError
from kvist.core.request import FinishReason
from kvist.core.request_events import Finished, PromptScored, Queued, Scheduled, TokensSampled

pytestmark = pytest.mark.parametrize("depth", [1, 2])


def test_a_request_is_queued_scheduled_sampled_and_finished_in_that_order(depth: int) -> None:
    world = World(depth=depth)
    first = world.scheduler.add_request(request("a", 20, max_tokens=3), 0.0)
    world.run(request("other"))
    kinds = [type(event) for event in first + world.events if event.request_id == "a"]
    assert kinds == [Queued, Scheduled, TokensSampled, TokensSampled, TokensSampled, Finished]
    world.assert_at_rest()


def test_the_length_stop_is_never_overrun(depth: int) -> None:
    world = World(depth=depth)
    world.run(*(request(f"r{length}", length, max_tokens=5) for length in range(1, 40)))
    assert all(len(tokens) == 5 for tokens in world.outputs().values())
    # The last token is never computed: nobody needs its keys and values.
    for length in range(1, 40):
        assert sum(step.get(f"r{length}", 0) for step in world.step_tokens()) == length + 4


def test_a_stop_token_ends_the_output_and_is_its_last_token(depth: int) -> None:
    plain = World(depth=depth)
    plain.run(request("a", 20, max_tokens=12))
    tokens = plain.outputs()["a"]
    world = World(depth=depth)
    world.run(request("a", 20, max_tokens=12, eos=(tokens[4],)))
    assert world.outputs()["a"] == tokens[:5]
    assert world.finished()["a"].stop_token_id == tokens[4]
    assert world.finished()["a"].num_output_tokens == 5
    assert world.reasons() == {"a": FinishReason.STOP}
    world.assert_at_rest()


def test_a_stop_token_is_passed_over_before_min_tokens_and_with_ignore_eos(depth: int) -> None:
    world = World(depth=depth, vocab_size=1)  # every token is 0
    world.run(
        request("eos", eos=(0,)),
        request("min", eos=(0,), sampling={"min_tokens": 5}),
        request("ignored", eos=(0,), sampling={"ignore_eos": True}),
        request("own", sampling={"stop_token_ids": (0,)}),
        request("both", eos=(0,), sampling={"ignore_eos": True, "stop_token_ids": (0,)}),
    )
    lengths = {id_: len(tokens) for id_, tokens in world.outputs().items()}
    assert lengths == {"eos": 1, "min": 5, "ignored": 8, "own": 1, "both": 1}


def test_max_tokens_0_computes_the_prompt_and_samples_nothing(depth: int) -> None:
    world = World(depth=depth, budget=16)
    world.run(request("a", 50, max_tokens=0, sampling={"prompt_logprobs": 0}))
    assert world.outputs() == {}
    assert world.reasons() == {"a": FinishReason.LENGTH}
    scored = [entry.token_id for event in world.of_type(PromptScored) for entry in event.logprobs]
    assert len(scored) == 49
    assert sum(step["a"] for step in world.step_tokens()) == 50
    world.assert_at_rest()


def test_prompt_logprobs_are_complete_though_the_prompt_is_cached(depth: int) -> None:
    world = World(depth=depth, budget=16)
    prompt = list(range(60))
    world.run(request("warm", prompt))
    world.run(request("scored", prompt, at=100.0, sampling={"prompt_logprobs": 1}))
    scored = [entry.token_id for event in world.of_type(PromptScored) for entry in event.logprobs]
    assert scored == prompt[1:]
    assert world.cached()["scored"] == 0


def test_a_full_hit_still_computes_one_token(depth: int) -> None:
    world = World(depth=depth)
    prompt = list(range(48))
    world.run(request("cold", prompt))
    world.run(request("warm", prompt, at=100.0))
    assert world.cached() == {"cold": 0, "warm": 47}
    assert world.outputs()["cold"] == world.outputs()["warm"]


def test_a_request_that_can_never_fit_is_refused_at_once(depth: int) -> None:
    world = World(depth=depth, num_blocks=4, max_model_len=100)
    with pytest.raises(RequestTooLongError, match="KV pool holds 64 tokens"):
        world.scheduler.add_request(request("pool", 60, max_tokens=5), 0.0)
    world = World(depth=depth, num_blocks=64, max_model_len=100)
    with pytest.raises(RequestTooLongError, match="context is 100 tokens"):
        world.scheduler.add_request(request("context", 60, max_tokens=41), 0.0)
    with pytest.raises(RequestTooLongError):
        world.scheduler.add_request(request("prompt", 100, max_tokens=None), 0.0)
    with pytest.raises(InvalidRequestError, match="no tokens"):
        world.scheduler.add_request(request("empty", []), 0.0)
    world.assert_at_rest()


def test_values_that_would_spoil_the_queues_are_refused(depth: int) -> None:
    world = World(depth=depth, config={"queue_order": "priority"})
    good = request("a")
    for bad in (
        msgspec.structs.replace(good, priority=10**400),
        msgspec.structs.replace(good, deadline_s=float("nan")),
        msgspec.structs.replace(good, prompt_token_ids=b"12345"),
    ):
        with pytest.raises(InvalidRequestError):
            world.scheduler.add_request(bad, 0.0)
    world.assert_at_rest()


def test_without_max_tokens_the_output_ends_with_the_context(depth: int) -> None:
    world = World(depth=depth, num_blocks=64, max_model_len=100)
    world.run(request("a", 60, max_tokens=None))
    assert len(world.outputs()["a"]) == 40
    assert world.reasons() == {"a": FinishReason.LENGTH}


def test_an_id_in_use_is_refused_and_may_be_used_again_afterwards(depth: int) -> None:
    world = World(depth=depth)
    world.scheduler.add_request(request("a"), 0.0)
    with pytest.raises(InvalidRequestError, match="in use"):
        world.scheduler.add_request(request("a"), 0.0)
    world.run(request("b"))
    world.run(request("a", at=50.0))
    assert len(world.outputs()["a"]) == 16


def test_an_idle_engine_never_refuses_and_a_full_queue_does(depth: int) -> None:
    world = World(depth=depth, config={"max_num_queued_reqs": 1, "max_num_seqs": 2})
    for id_ in ("a", "b", "c"):
        world.scheduler.add_request(request(id_), 0.0)
    with pytest.raises(QueueFullError) as error:
        world.scheduler.add_request(request("d"), 0.0)
    assert error.value.retry_after_s >= 1.0
    world.run(request("starter", at=0.0))
    assert [id_ for id_, _ in world.driver.rejected] == ["starter"]
