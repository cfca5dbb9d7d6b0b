"""AsyncLLM streams, aborts, and gives the same whatever engine runs beneath."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest

from kvist import AsyncLLM, SamplingParams
from kvist.config.scheduler_config import POLICIES
from kvist.core.errors import EngineUnavailableError
from kvist.runtime.engine_client import EngineStatus

SMALL: dict[str, Any] = {
    "max_num_batched_tokens": 64,
    "num_blocks": 256,
    "max_model_len": 512,
    "check_invariants": True,
}
SHARED_PREFIX = "You are a helpful assistant that answers in few words. " * 8


@pytest.fixture(scope="module")
def model(tiny_model: Any) -> str:
    return str(tiny_model("llama", "f32"))


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(100):
        while not condition():
            await asyncio.sleep(0.005)


def is_at_rest(status: EngineStatus) -> bool:
    return (
        status.num_running == status.num_waiting == 0
        and status.num_free_blocks + status.num_evictable_blocks == status.num_total_blocks
    )


async def complete(llm: AsyncLLM, prompt: str, params: SamplingParams) -> tuple[list[int], str, int]:
    async with aclosing(llm.generate(prompt, params)) as outputs:
        async for output in outputs:
            last = output
    return last.outputs[0].token_ids, last.outputs[0].text, last.num_cached_tokens


MIXED = [
    ("short", SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=20)),
    (SHARED_PREFIX + "one", SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=12)),
    (SHARED_PREFIX + "two", SamplingParams(temperature=0.8, seed=11, ignore_eos=True, max_tokens=12)),
    (SHARED_PREFIX + "three", SamplingParams(temperature=1.0, top_k=20, seed=12, ignore_eos=True, max_tokens=7)),
    ("a b c d e f g " * 9, SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=9, repetition_penalty=1.3)),
]


def outputs_with(model: str, *, engine_client: str = "thread", **options: Any) -> list[tuple[list[int], str]]:
    async def run() -> list[tuple[list[int], str]]:
        async with AsyncLLM(model, engine_client=engine_client, **(SMALL | options)) as llm:
            results = await asyncio.gather(*(complete(llm, prompt, params) for prompt, params in MIXED))
            results += await asyncio.gather(*(complete(llm, prompt, params) for prompt, params in MIXED))
            await eventually(lambda: is_at_rest(llm.engine.client.status()))
            return [(token_ids, text) for token_ids, text, _ in results]

    return asyncio.run(run())


@pytest.fixture(scope="module")
def expected(model: str) -> list[tuple[list[int], str]]:
    return outputs_with(model, max_num_seqs=1, enable_prefix_caching=False)


@pytest.mark.parametrize(
    "options",
    [
        {"engine_client": "thread"},
        {"engine_client": "process"},
        {"enable_prefix_caching": False},
        {"num_blocks": 40, "max_num_seqs": 4},
        {"max_num_batched_tokens": 16},
        {"max_num_batched_tokens": 512},
        {"queue_order": "lpm"},
        {"max_steps_in_flight": 2},
        *({"policy": policy} for policy in POLICIES),
    ],
    ids=lambda options: "-".join(f"{name}={value}" for name, value in options.items()),
)
def test_outputs_are_the_same_whatever_runs_beneath(
    model: str, expected: list[tuple[list[int], str]], options: dict[str, Any]
) -> None:
    assert outputs_with(model, **options) == expected


def test_32_requests_at_once_compute_their_shared_prefix_once(model: str) -> None:
    async def run() -> None:
        async with AsyncLLM(model, **(SMALL | {"num_blocks": 1024})) as llm:
            computed = 0

            def count(batch: Any) -> None:
                nonlocal computed
                if batch.step is not None:
                    computed += batch.step.num_prefill_tokens

            llm.engine.client.add_listener(count)
            prompts = [SHARED_PREFIX + f"question {index}" for index in range(32)]
            lengths = [len(llm.get_tokenizer().encode(prompt)) for prompt in prompts]
            prefix = len(llm.get_tokenizer().encode(SHARED_PREFIX))
            params = SamplingParams(temperature=0.0, max_tokens=2)
            results = await asyncio.gather(*(complete(llm, prompt, params) for prompt in prompts))
            # Each request computes what lies behind the shared blocks: its own tail, and at most a block more.
            assert computed <= prefix + sum(length - prefix + 16 for length in lengths)
            assert sum(cached for _, _, cached in results) >= 31 * (prefix - 16)

    asyncio.run(run())


def test_outputs_grow_and_the_last_is_finished(model: str) -> None:
    async def run() -> None:
        async with AsyncLLM(model, **SMALL) as llm:
            lengths = []
            async for output in llm.generate("hello", SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)):
                lengths.append(len(output.outputs[0].token_ids))
            assert lengths == sorted(lengths)
            assert lengths[-1] == 9
            assert output.finished

    asyncio.run(run())


def test_abort_by_request_id_ends_the_stream(model: str) -> None:
    async def run() -> None:
        async with AsyncLLM(model, **SMALL) as llm:
            params = SamplingParams(max_tokens=400, ignore_eos=True, n=2)
            async for output in llm.generate("hello", params, "mine"):
                if output.outputs[0].token_ids and not output.finished:
                    await llm.abort("mine")
            assert [sample.finish_reason for sample in output.outputs] == ["abort", "abort"]
            await eventually(lambda: is_at_rest(llm.engine.client.status()))

    asyncio.run(run())


def test_leaving_the_loop_aborts_the_request(model: str) -> None:
    async def run() -> None:
        async with AsyncLLM(model, **SMALL) as llm:
            async with aclosing(llm.generate("hello", SamplingParams(max_tokens=400, ignore_eos=True))) as outputs:
                async for output in outputs:
                    if output.outputs[0].token_ids:
                        break
            await eventually(lambda: is_at_rest(llm.engine.client.status()))

    asyncio.run(run())


def test_chat_streams_too(model: str) -> None:
    async def run() -> None:
        async with AsyncLLM(model, **SMALL) as llm:
            outputs = llm.chat([{"role": "user", "content": "hi"}], SamplingParams(max_tokens=3))
            finished = [output.finished async for output in outputs]
            assert finished[-1]

    asyncio.run(run())


def test_using_it_before_start_or_after_shutdown_says_what_to_do(model: str) -> None:
    async def run() -> None:
        llm = AsyncLLM(model, **SMALL)
        with pytest.raises(EngineUnavailableError, match="async with"):
            llm.get_tokenizer()
        await llm.start()
        await llm.shutdown()
        with pytest.raises(EngineUnavailableError):
            await anext(llm.generate("hello"))

    asyncio.run(run())
