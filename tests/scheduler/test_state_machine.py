"""Random life of a scheduler, every invariant checked after every step, at depth 1 and 2.

Whatever happens - aborts in every state, failing steps, deadlines, a pool of any size - each finished request has
exactly the tokens that it has when it runs alone, the executor never sees a broken plan, and at rest no block is held.
"""

from __future__ import annotations

from collections import defaultdict, deque

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.fakes.engine_world import World, request
from tests.fakes.oracle_speculator import OracleSpeculator

from kvist.config.scheduler_config import POLICIES, QUEUE_ORDERS
from kvist.core.errors import KvistError
from kvist.core.request import FinishReason, NewRequest, RequestId, unpack_token_ids
from kvist.core.request_events import Finished, PromptScored, RequestEvent, TokensSampled
from kvist.engine.engine_core import OpenStep
from kvist.scheduler.drafting import Speculator
from kvist.simulator.simulated_executor import hashed_token
from kvist.speculation.adaptive_speculator import AdaptiveSpeculator
from kvist.speculation.proposers import ModelProposer, NgramProposer

VOCAB_SIZE = 40  # small: stop tokens are hit by chance, at any depth
SAMPLE = hashed_token(VOCAB_SIZE)


def tokens_alone(new: NewRequest, max_model_len: int) -> list[int]:
    """What `new` gives on an engine of its own."""
    num_prompt = len(unpack_token_ids(new.prompt_token_ids))
    limit = new.sampling.max_tokens if new.sampling.max_tokens is not None else max_model_len - num_prompt
    tokens: list[int] = []
    while len(tokens) < limit:
        tokens.append(SAMPLE(new.sampling, new.sample_index, num_prompt + len(tokens)))
        if tokens[-1] in new.eos_token_ids and len(tokens) >= new.sampling.min_tokens:
            break
    return tokens


def make_speculator(drafts: str) -> Speculator | None:
    if drafts == "none":
        return None
    if drafts == "oracle":
        return OracleSpeculator(SAMPLE, num_tokens=20)  # more than a block
    proposer = NgramProposer(min_length=1, max_length=3) if drafts == "ngram" else ModelProposer()
    return AdaptiveSpeculator(proposer, max_draft_tokens=5, is_adaptive=drafts == "model")


class SchedulerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.num_added = 0
        self.open: deque[OpenStep] = deque()
        self.submitted: dict[str, NewRequest] = {}
        self.outputs: dict[str, list[int]] = defaultdict(list)
        self.scored: dict[str, list[int]] = defaultdict(list)
        self.finished: dict[str, Finished] = {}
        self.num_failed_steps = 0

    @initialize(
        policy=st.sampled_from(POLICIES),
        queue_order=st.sampled_from(QUEUE_ORDERS),
        depth=st.sampled_from([1, 2]),
        num_blocks=st.sampled_from([6, 10, 40]),
        budget=st.sampled_from([16, 24, 64]),
        max_num_seqs=st.sampled_from([1, 3, 16]),
        threshold=st.sampled_from([0, 5]),
        enable_prefix_caching=st.booleans(),
        drafts=st.sampled_from(["none", "ngram", "model", "oracle"]),
    )
    def build(
        self,
        policy: str,
        queue_order: str,
        depth: int,
        num_blocks: int,
        budget: int,
        max_num_seqs: int,
        threshold: int,
        enable_prefix_caching: bool,
        drafts: str,
    ) -> None:
        self.max_len = min(90, num_blocks * 16)
        self.world = World(
            num_blocks=num_blocks,
            budget=budget,
            depth=depth,
            max_model_len=self.max_len,
            vocab_size=VOCAB_SIZE,
            speculator=make_speculator(drafts),
            enable_prefix_caching=enable_prefix_caching,
            config={
                "policy": policy,
                "queue_order": queue_order,
                "max_num_seqs": max_num_seqs,
                "long_prefill_token_threshold": threshold,
                "max_num_queued_reqs": 8,
                "ageing_s": 20.0,
            },
        )
        self.core = self.world.core

    @rule(
        shared=st.integers(0, 50),
        own=st.integers(0, 20),
        max_tokens=st.sampled_from([0, 1, 2, 17, 40, None]),
        priority=st.integers(0, 2),
        eos=st.booleans(),
        min_tokens=st.sampled_from([0, 1]),
        deadline=st.sampled_from([None, None, None, 15.0]),
        num_forks=st.sampled_from([0, 0, 0, 2]),
        prompt_logprobs=st.sampled_from([None, None, 0]),
        skip=st.booleans(),
    )
    def add(
        self,
        shared: int,
        own: int,
        max_tokens: int | None,
        priority: int,
        eos: bool,
        min_tokens: int,
        deadline: float | None,
        num_forks: int,
        prompt_logprobs: int | None,
        skip: bool,
    ) -> None:
        self.num_added += 1
        prompt = [*range(shared), *(1000 * self.num_added + index for index in range(own))]
        for index in range(num_forks + 1):
            new = request(
                f"r{self.num_added}-{index}",
                prompt,
                max_tokens,
                eos=(0, 1, 2) if eos else (),
                priority=priority,
                sample_index=index,
                fork_of=f"r{self.num_added}-0" if index else None,
                deadline_s=None if deadline is None else self.now + deadline,
                skip_reading_prefix_cache=skip and num_forks == 0 and own == 0,
                sampling={
                    "seed": self.num_added,
                    "min_tokens": min_tokens if max_tokens != 0 else 0,
                    "prompt_logprobs": prompt_logprobs,
                },
            )
            try:
                self.take(self.core.add_request(new, self.now))
            except KvistError:
                return
            self.submitted[new.request_id] = new

    @precondition(lambda self: self.open or self.core.has_unfinished_requests)
    @rule(which=st.integers(0, 1000))
    def abort(self, which: int) -> None:
        alive = [id_ for id_ in self.submitted if id_ not in self.finished]
        if alive:
            self.take(self.core.abort_request(RequestId(alive[which % len(alive)]), self.now))
        assert self.core.abort_request(RequestId("unknown"), self.now) == []

    @rule()
    def begin(self) -> None:
        step = self.core.begin(self.now)
        if step is not None:
            assert step.error is None, step.error
            self.open.append(step)

    @precondition(lambda self: self.open)
    @rule(duration=st.sampled_from([0.0, 1.0, 30.0]), fails=st.sampled_from([False] * 9 + [True]))
    def finish(self, duration: float, fails: bool) -> None:
        self.now += duration
        step = self.open.popleft()
        if fails:
            step.error = "a fault"
            self.num_failed_steps += 1
            step.result = None
        self.take(self.core.finish(step, self.now, duration).events)

    @precondition(lambda self: not self.open)
    @rule()
    def reset_cache(self) -> None:
        self.core.reset_prefix_cache()

    @invariant()
    def state_is_sound(self) -> None:
        if hasattr(self, "world"):
            self.world.scheduler.check_invariants()

    def take(self, events: list[RequestEvent]) -> None:
        for event in events:
            assert event.request_id not in self.finished, "an event after the last one"
            if isinstance(event, PromptScored):
                self.scored[event.request_id] += [entry.token_id for entry in event.logprobs]
            elif isinstance(event, TokensSampled):
                self.outputs[event.request_id] += event.token_ids
            elif isinstance(event, Finished):
                self.finished[event.request_id] = event
                self.check_output(event)

    def check_output(self, event: Finished) -> None:
        new = self.submitted.get(event.request_id)
        if new is None:
            return
        alone = tokens_alone(new, self.max_len)
        tokens = self.outputs[event.request_id]
        assert event.num_output_tokens == len(tokens)
        if new.sampling.prompt_logprobs is not None and event.reason in (FinishReason.STOP, FinishReason.LENGTH):
            prompt = unpack_token_ids(new.prompt_token_ids).tolist()
            assert self.scored[event.request_id] == prompt[1:]
        if event.reason in (FinishReason.ABORT, FinishReason.ERROR):
            assert tokens == alone[: len(tokens)]
            return
        assert tokens == alone
        is_stop = bool(tokens) and tokens[-1] in new.eos_token_ids and len(tokens) >= new.sampling.min_tokens
        assert event.reason is (FinishReason.STOP if is_stop else FinishReason.LENGTH)
        assert event.stop_token_id == (tokens[-1] if is_stop else None)

    def teardown(self) -> None:
        """Everything ends in a bounded number of steps, and then nothing is held."""
        if not hasattr(self, "world"):
            return
        for _ in range(3000):
            step = self.core.begin(self.now)
            if step is not None:
                assert step.error is None, step.error
                self.open.append(step)
            if not self.open:
                break
            if step is None or len(self.open) == self.core.max_steps_in_flight:
                self.now += 1.0
                self.take(self.core.finish(self.open.popleft(), self.now, 1.0).events)
        self.take(self.core.take_events(self.now).events)
        assert self.finished.keys() >= self.submitted.keys(), "a request has no end"
        self.world.assert_at_rest()


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
