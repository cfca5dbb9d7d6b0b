"""Both forms of the engine client over the simulated engine, and short cuts for requests."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

from tests.fakes.simulated_engine import build_simulated_engine

from kvist.config.cache_config import CacheConfig
from kvist.config.engine_config import EngineConfig
from kvist.config.model_config import ModelConfig
from kvist.config.scheduler_config import SchedulerConfig
from kvist.core.request import NewRequest, RequestId, pack_token_ids
from kvist.core.request_events import Finished, RequestEvent, TokensSampled
from kvist.core.sampling_params import SamplingParams
from kvist.runtime.engine_client import EngineStatus
from kvist.runtime.process_link import ProcessLink
from kvist.runtime.real_clock import RealClock
from kvist.runtime.supervised_client import SupervisedEngineClient
from kvist.runtime.thread_link import ThreadLink

FORMS = ("thread", "process")
COMMAND = (sys.executable, "-m", "tests.fakes.simulated_engine")
LONG = 7000  # tokens, each at least a millisecond: more than whoever looks can miss


def simulated_config(**scheduler: object) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(model="simulated"),
        cache=CacheConfig(num_blocks=2048),
        scheduler=SchedulerConfig(check_invariants=True, **scheduler),
    )


def named(config: EngineConfig, model: str) -> EngineConfig:
    return replace(config, model=replace(config.model, model=model))


def make_client(form: str, config: EngineConfig) -> SupervisedEngineClient:
    clock = RealClock()
    if form == "thread":
        return SupervisedEngineClient(
            lambda: ThreadLink(lambda report: build_simulated_engine(config, report), clock), clock
        )
    return SupervisedEngineClient(lambda: ProcessLink(COMMAND, config), clock)


@asynccontextmanager
async def running(form: str, config: EngineConfig | None = None) -> AsyncIterator[SupervisedEngineClient]:
    client = make_client(form, config or simulated_config())
    await client.start()
    try:
        yield client
    finally:
        await client.close(drain_s=0.0)


def new_request(
    name: str, prompt: Sequence[int] = tuple(range(40)), *, max_tokens: int = 8, seed: int = 7, **fields: object
) -> NewRequest:
    return NewRequest(
        request_id=RequestId(name),
        prompt_token_ids=pack_token_ids(list(prompt)),
        sampling=SamplingParams(max_tokens=max_tokens, seed=seed),
        arrival_time_s=0.0,
        **fields,
    )


async def events_of(client: SupervisedEngineClient, request: NewRequest) -> list[RequestEvent]:
    events: list[RequestEvent] = []
    async with aclosing(client.submit(request)) as stream:
        async for some in stream:
            events += some
    return events


def tokens_in(events: Sequence[RequestEvent]) -> list[int]:
    return [token for event in events if isinstance(event, TokensSampled) for token in event.token_ids]


def finish_of(events: Sequence[RequestEvent]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


def is_at_rest(status: EngineStatus) -> bool:
    return (
        status.num_running == status.num_waiting == status.num_waiting_tokens == 0
        and status.num_free_blocks + status.num_evictable_blocks == status.num_total_blocks
    )
