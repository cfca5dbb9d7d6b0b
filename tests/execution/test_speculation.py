"""With drafts each request gets what it gets without: token by token, under every policy, in any memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from tests.fakes.engine_world import request
from tests.fakes.plan_loop import one

from kvist.config.scheduler_config import POLICIES, SchedulerConfig
from kvist.core.draft import Draft
from kvist.core.request import NewRequest, Request
from kvist.core.request_events import Finished, Preempted, TokensSampled
from kvist.core.sampling_params import SamplingParams
from kvist.engine.engine_core import EngineCore
from kvist.execution.model_executor import ModelExecutor
from kvist.kvcache.kv_cache import KVCache
from kvist.scheduler.drafting import Speculator
from kvist.scheduler.scheduler import Scheduler
from kvist.speculation.adaptive_speculator import AdaptiveSpeculator
from kvist.speculation.proposers import ModelProposer, NgramProposer

NUM_BLOCKS = 96
TINY_POOL = 14
PATTERN = [7, 8, 9, 10, 7, 8, 9, 11]
GREEDY = {"temperature": 0.0}


class Outcome:
    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = defaultdict(list)
        self.logprobs: dict[str, list[Any]] = defaultdict(list)
        self.num_drafts = self.num_accepted = self.num_preemptions = 0
        self.finished: dict[str, Finished] = {}


def serve(
    executor: ModelExecutor,
    requests: Iterable[NewRequest],
    speculator: Speculator | None,
    *,
    policy: str = "chunked_prefill",
    num_blocks: int = NUM_BLOCKS,
    budget: int = 64,
    enable_prefix_caching: bool = True,
) -> Outcome:
    """Everything that came out of an engine over the executor; the scheduler's invariants hold after each step."""
    cache = KVCache(num_blocks=num_blocks, enable_prefix_caching=enable_prefix_caching)
    scheduler = Scheduler(
        SchedulerConfig(policy=policy, check_invariants=True),
        cache,
        block_size=16,
        max_num_batched_tokens=budget,
        max_model_len=512,
        speculator=speculator,
    )
    core, outcome = EngineCore(scheduler, executor), Outcome()
    for new in requests:
        core.add_request(new, 0.0)
    now = 0.0
    while (step := core.begin(now)) is not None:
        now += 1.0
        for event in core.finish(step, now, 1.0).events:
            if isinstance(event, TokensSampled):
                outcome.tokens[event.request_id] += event.token_ids
                outcome.logprobs[event.request_id] += event.logprobs or []
                outcome.num_drafts += event.num_draft_tokens
                outcome.num_accepted += len(event.token_ids) - 1
            elif isinstance(event, Finished):
                assert event.error is None
                outcome.finished[event.request_id] = event
            outcome.num_preemptions += isinstance(event, Preempted)
    assert not core.has_unfinished_requests
    assert cache.num_available_blocks == cache.num_total_blocks
    return outcome


def look_up(is_adaptive: bool = False) -> AdaptiveSpeculator:
    return AdaptiveSpeculator(NgramProposer(min_length=1, max_length=4), max_draft_tokens=5, is_adaptive=is_adaptive)


def by_model(is_adaptive: bool = False) -> AdaptiveSpeculator:
    return AdaptiveSpeculator(ModelProposer(), max_draft_tokens=4, is_adaptive=is_adaptive)


def some_requests(sampling: dict[str, Any], max_tokens: int = 40) -> list[NewRequest]:
    prompts = [PATTERN * 4, [*range(20, 45)], PATTERN * 4 + [5, 6], [3], [*range(20, 45), 7, 8], PATTERN * 2]
    return [request(f"r{i}", prompt, max_tokens, sampling=sampling) for i, prompt in enumerate(prompts)]


GRID = [("native", policy, num_blocks) for policy in POLICIES for num_blocks in (NUM_BLOCKS, TINY_POOL)]


@pytest.mark.parametrize(("executor", "policy", "num_blocks"), [*GRID, ("reference", "chunked_prefill", NUM_BLOCKS)])
@pytest.mark.parametrize("make", [look_up, by_model])
def test_greedy_outputs_are_the_same(tiny_executor, executor, make, num_blocks, policy):
    model = tiny_executor("llama", executor=executor, draft=("qwen3", "f32"), num_blocks=NUM_BLOCKS)
    requests = some_requests(GREEDY, max_tokens=40 if num_blocks == NUM_BLOCKS else 100)
    plain = serve(model, requests, None, policy=policy, num_blocks=num_blocks)
    drafting = serve(model, requests, make(), policy=policy, num_blocks=num_blocks)
    uncached = serve(model, requests, make(), policy=policy, num_blocks=num_blocks, enable_prefix_caching=False)
    assert plain.tokens == drafting.tokens == uncached.tokens
    assert drafting.num_drafts > 0
    if num_blocks == TINY_POOL and policy != "static":
        assert plain.num_preemptions > 0
        assert uncached.num_preemptions > 0


@pytest.mark.parametrize("executor", ["reference", "native"])
def test_a_draft_model_that_is_the_model_is_always_right(tiny_executor, executor):
    model = tiny_executor("llama", executor=executor, draft=("llama", "f32"))
    for sampling in (GREEDY, {"temperature": 1.0, "seed": 5, "presence_penalty": 0.5, "top_p": 0.9}):
        requests = some_requests(sampling)
        plain, drafting = serve(model, requests, None), serve(model, requests, by_model())
        assert plain.tokens == drafting.tokens
        assert drafting.num_accepted == drafting.num_drafts > 100


def test_blocks_that_change_hands_never_mislead_the_draft_model(tiny_executor):
    model = tiny_executor("llama", executor="native", draft=("llama", "f32"))
    for policy in ("chunked_prefill", "prefill_first"):
        requests = some_requests({"temperature": 1.0, "seed": 5}, max_tokens=100)
        drafting = serve(model, requests, by_model(), num_blocks=TINY_POOL, policy=policy)
        assert drafting.num_preemptions > 0
        assert drafting.num_accepted == drafting.num_drafts > 300


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.7, "seed": 3},
        {"temperature": 1.2, "top_p": 0.8, "seed": 4},
        {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.2},
        {"temperature": 0.9, "top_k": 20, "logit_bias": {7: 3.0, 8: 3.0}, "seed": 1},
        {"temperature": 0.0, "min_tokens": 12, "stop_token_ids": tuple(range(0, 500, 7))},
        {"temperature": 0.0, "allowed_token_ids": (7, 8, 9)},
    ],
    ids=str,
)
@pytest.mark.parametrize("make", [look_up, by_model])
def test_sampled_outputs_and_their_logprobs_are_the_same(tiny_executor, make, sampling):
    model = tiny_executor("llama", executor="native", draft=("mistral", "f32"))
    requests = some_requests({**sampling, "logprobs": 3})
    plain, drafting = serve(model, requests, None), serve(model, requests, make())
    assert plain.tokens == drafting.tokens
    assert plain.logprobs == drafting.logprobs  # to the bit: the native executor's numbers do not depend on chunks
    assert {id_: event.reason for id_, event in plain.finished.items()} == {
        id_: event.reason for id_, event in drafting.finished.items()
    }
    assert drafting.num_drafts > 0


def test_a_draft_model_catches_up_with_what_it_has_not_seen(tiny_executor):
    """Drafting starts late and with a budget that is too small to catch up at once."""

    class Late:
        def __init__(self) -> None:
            self._inner, self._num_steps = by_model(), 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def propose(self, requests: Sequence[Request], limits: Sequence[int], **room: int) -> list[Draft | None]:
            self._num_steps += 1
            if self._num_steps % 40 < 25:
                return [None] * len(requests)
            return self._inner.propose(requests, limits, **room)

    model = tiny_executor("llama", draft=("llama", "f32"), max_num_batched_tokens=32)
    requests = some_requests({"temperature": 1.0, "seed": 2}, max_tokens=90)
    plain = serve(model, requests, None, budget=32)
    drafting = serve(model, requests, Late(), budget=32)
    assert plain.tokens == drafting.tokens
    assert drafting.num_accepted > 0.5 * drafting.num_drafts  # all that the model did make were right


def test_drafts_after_a_shared_prefix_and_copies_on_write_are_right(tiny_executor):
    model = tiny_executor("llama", executor="native", draft=("llama", "f32"))
    sampling = {"temperature": 1.0, "seed": 9}
    prompt = [*range(100, 137)]
    forks = [
        request(f"s{i}", prompt, 30, sampling=sampling, sample_index=i, fork_of="s0" if i else None) for i in range(3)
    ]
    later = [request("again", [*prompt, 5], 20, sampling=sampling)]
    plain = serve(model, forks + later, None)
    drafting = serve(model, forks + later, by_model())
    assert plain.tokens == drafting.tokens
    assert drafting.num_accepted == drafting.num_drafts > 0


def test_numbers_of_a_draft_model_that_are_not_finite_propose_nothing(tiny_executor):
    model = tiny_executor("llama", draft=("mistral", "q8_0"))
    model._draft_model.runner._weights.shared["embed"][:] = np.inf
    requests = some_requests(GREEDY)
    plain, drafting = serve(model, requests, None), serve(model, requests, by_model())
    assert plain.tokens == drafting.tokens
    assert drafting.num_accepted == 0


ALLOWED = (7, 8, 9)
TOY = {"temperature": 1.5, "allowed_token_ids": ALLOWED, "logprobs": 3}
CHI_SQUARE_999 = 54.05  # of 26 degrees of freedom


def exact_distribution(model: ModelExecutor, prompt: list[int], num_tokens: int) -> dict[tuple[int, ...], float]:
    """Probability of each output, from the executor's own probabilities after each prefix."""
    outputs: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(num_tokens):
        longer = {}
        for prefix, probability in outputs.items():
            (scores,) = one(model, [*prompt, *prefix], 1, SamplingParams(seed=0, **TOY)).logprobs
            for token, logprob in zip(scores.top_token_ids, scores.top_logprobs, strict=True):
                longer[*prefix, token] = probability * np.exp(logprob)
        outputs = longer
    return outputs


@pytest.mark.parametrize("make", [look_up, by_model])
def test_sampling_with_drafts_has_the_distribution_without(tiny_executor, make):
    model = tiny_executor("llama", executor="native", draft=("llama", "q4_0"), logprobs_mode="processed_logprobs")
    prompt = [7, 8, 9, 9, 7, 7, 8, 8, 9, 7]
    expected = exact_distribution(model, prompt, 3)
    assert len(expected) == len(ALLOWED) ** 3
    requests = [request(f"r{i}", prompt, 4, sampling={**TOY, "seed": i}) for i in range(900)]
    outcome = serve(model, requests, make(), budget=256)
    assert outcome.num_drafts > 400
    assert 0.1 < outcome.num_accepted / outcome.num_drafts < 0.98
    counts = Counter(tuple(tokens[:3]) for tokens in outcome.tokens.values())
    chi_square = sum((counts[key] - 900 * p) ** 2 / (900 * p) for key, p in expected.items())
    assert chi_square < CHI_SQUARE_999
