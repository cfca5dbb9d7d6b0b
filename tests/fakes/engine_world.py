"""A whole engine under virtual time for the scheduler's tests: real scheduler and cache, simulated executor."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from kvist.config.scheduler_config import SchedulerConfig
from kvist.core.clock import VirtualClock
from kvist.core.request import FinishReason, NewRequest, RequestId, pack_token_ids
from kvist.core.request_events import EventBatch, Finished, Preempted, RequestEvent, Scheduled, TokensSampled
from kvist.core.sampling_params import SamplingParams
from kvist.engine.engine_core import EngineCore
from kvist.kvcache.kv_cache import KVCache
from kvist.scheduler.drafting import Speculator
from kvist.scheduler.scheduler import Scheduler
from kvist.simulator.event_driver import EventDriver
from kvist.simulator.simulated_executor import (
    SampleToken,
    SimulatedExecutor,
    StepDuration,
    fixed_duration,
    hashed_token,
)

BLOCK_SIZE = 16


def request(
    request_id: str,
    prompt: int | list[int] = 32,
    max_tokens: int | None = 8,
    *,
    at: float = 0.0,
    eos: tuple[int, ...] = (),
    sampling: dict[str, Any] | None = None,
    **fields: Any,
) -> NewRequest:
    """A request. An int prompt gives so many tokens that no other request has."""
    if isinstance(prompt, int):
        base = int.from_bytes(request_id.encode(), "big") % 2_000_003 * 1_000
        prompt = [base + index for index in range(prompt)]
    params = SamplingParams(max_tokens=max_tokens, **{"seed": 1, **(sampling or {})})
    return NewRequest(
        request_id=RequestId(request_id),
        prompt_token_ids=pack_token_ids(prompt),
        sampling=params,
        arrival_time_s=at,
        eos_token_ids=eos,
        **fields,
    )


@dataclass
class World:
    """An engine, its driver and everything that came out of it."""

    num_blocks: int = 512
    budget: int = 128
    depth: int = 1
    max_model_len: int = 4096
    duration: StepDuration = field(default_factory=lambda: fixed_duration(1.0))
    vocab_size: int = 32_000
    enable_prefix_caching: bool = True
    config: dict[str, Any] = field(default_factory=dict)
    speculator: Speculator | None = None
    sample_token: SampleToken | None = None
    events: list[RequestEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cache = KVCache(
            num_blocks=self.num_blocks, block_size=BLOCK_SIZE, enable_prefix_caching=self.enable_prefix_caching
        )
        config = SchedulerConfig(**{"check_invariants": True, "max_steps_in_flight": self.depth, **self.config})
        self.scheduler = Scheduler(
            config,
            self.cache,
            block_size=BLOCK_SIZE,
            max_num_batched_tokens=self.budget,
            max_model_len=self.max_model_len,
            speculator=self.speculator,
        )
        self.executor = SimulatedExecutor(
            num_blocks=self.num_blocks,
            block_size=BLOCK_SIZE,
            duration=self.duration,
            sample_token=self.sample_token or hashed_token(self.vocab_size),
        )
        self.core = EngineCore(self.scheduler, self.executor)
        self.driver = EventDriver(self.core, VirtualClock())

    def run(self, *requests: NewRequest, until_s: float | None = None) -> list[EventBatch]:
        """Let `requests` arrive and run until nothing is left or `until_s`."""
        self.driver.submit(requests)
        batches = self.driver.run(until_s=until_s)
        for batch in batches:
            self.events += batch.events
        return batches

    def outputs(self) -> dict[str, list[int]]:
        tokens: dict[str, list[int]] = defaultdict(list)
        for event in self.of_type(TokensSampled):
            tokens[event.request_id] += event.token_ids
        return dict(tokens)

    def of_type(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def finished(self) -> dict[str, Finished]:
        return {event.request_id: event for event in self.of_type(Finished)}

    def reasons(self) -> dict[str, FinishReason]:
        return {id_: event.reason for id_, event in self.finished().items()}

    def cached(self) -> dict[str, int]:
        return {event.request_id: event.num_cached_tokens for event in self.of_type(Scheduled)}

    def num_preemptions(self) -> int:
        return len(self.of_type(Preempted))

    def step_tokens(self) -> list[dict[str, int]]:
        """Per step: request -> tokens."""
        return [dict(zip(plan.request_ids, plan.num_scheduled_tokens, strict=True)) for plan in self.driver.plans]

    def assert_at_rest(self) -> None:
        """Nothing waits, nothing runs, no block is held."""
        status = self.scheduler.status()
        assert (status.num_running, status.num_waiting, status.num_waiting_tokens) == (0, 0, 0)
        assert status.num_free_blocks + status.num_evictable_blocks == status.num_total_blocks
        self.scheduler.check_invariants()
