"""One answer, four ways to get its text: whole, streamed, from its token ids, and cut at a stop string."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from tests.fakes.multilingual import MULTILINGUAL_LINES
from tests.server.real_server import RealServer, real_server

NUM_TOKENS = 32
LINES = [line for line in MULTILINGUAL_LINES if line.strip()]
OPTIONS = {"max_tokens": NUM_TOKENS, "temperature": 1.2, "ignore_eos": True, "return_token_ids": True}


@dataclass(frozen=True)
class Answer:
    text: str
    token_ids: list[int]
    usage: dict[str, int]
    ending: tuple[str, str | int | None]
    num_cached_tokens: int = field(compare=False)


def answered(text: str, token_ids: list[int], usage: dict[str, Any], ending: tuple[str, str | int | None]) -> Answer:
    details = usage.pop("prompt_tokens_details")
    return Answer(text, token_ids, usage, ending, details["cached_tokens"])


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def server(request: pytest.FixtureRequest, tiny_model: Callable[..., Any]) -> Iterator[RealServer]:
    with real_server(tiny_model(request.param, "q8_0")) as running:
        yield running


@pytest.fixture(scope="module", params=["completions", "chat/completions"])
def ask(request: pytest.FixtureRequest, server: RealServer) -> Iterator[Callable[..., Answer]]:
    is_chat = request.param != "completions"
    with httpx.Client(base_url=f"{server.url}/v1", timeout=60) as client:

        def ask(line: str, *, seed: int, stream: bool = False, **options: Any) -> Answer:
            prompt = {"messages": [{"role": "user", "content": line}]} if is_chat else {"prompt": line}
            body = {"model": "tiny", "seed": seed, **prompt, **OPTIONS, **options}
            if stream:
                return streamed(client, request.param, body)
            answer = client.post(request.param, json=body).raise_for_status().json()
            choice = answer["choices"][0]
            text = choice["message"]["content"] if is_chat else choice["text"]
            ending = choice["finish_reason"], choice["stop_reason"]
            return answered(text, choice["token_ids"], answer["usage"], ending)

        yield ask


def streamed(client: httpx.Client, route: str, body: dict[str, Any]) -> Answer:
    text, ids, usage, ending = "", [], {}, ("", None)
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    with client.stream("POST", route, json=body) as response:
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line.removeprefix("data: "))
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                text += (choice["delta"].get("content") or "") if "delta" in choice else choice["text"]
                ids += choice.get("token_ids") or []
                if choice["finish_reason"]:
                    ending = choice["finish_reason"], choice["stop_reason"]
    return answered(text, ids, usage, ending)


def detokenize(server: RealServer, token_ids: list[int]) -> str:
    return httpx.post(f"{server.url}/detokenize", json={"tokens": token_ids}).json()["prompt"]


def in_all_languages(check: Callable[[str, int], None]) -> None:
    """Several at a time: they are each other's company."""
    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(check, line, seed) for seed, line in enumerate(LINES)]:
            done.result()


def test_whole_streamed_and_decoded_texts_are_equal(server: RealServer, ask: Callable[..., Answer]) -> None:
    def check(line: str, seed: int) -> None:
        whole = ask(line, seed=seed, skip_special_tokens=False)
        assert ask(line, seed=seed, skip_special_tokens=False, stream=True) == whole
        assert whole.text == detokenize(server, whole.token_ids)
        assert whole.ending == ("length", None)
        assert len(whole.token_ids) == NUM_TOKENS

    in_all_languages(check)


def test_usage_counts_what_was_read_and_written(server: RealServer, ask: Callable[..., Answer]) -> None:
    def check(line: str, seed: int) -> None:
        cold = ask(line, seed=seed, skip_reading_prefix_cache=True)
        cached = ask(line, seed=seed)
        for answer in (cold, cached):
            assert answer.usage["completion_tokens"] == len(answer.token_ids)
            assert answer.usage["total_tokens"] == answer.usage["prompt_tokens"] + answer.usage["completion_tokens"]
        assert cold.num_cached_tokens == 0
        assert cached.num_cached_tokens == cached.usage["prompt_tokens"] - 1
        assert (cached.text, cached.token_ids) == (cold.text, cold.token_ids)

    in_all_languages(check)


@pytest.mark.parametrize("include", [False, True])
def test_stop_strings_cut_alike_in_all_forms(server: RealServer, ask: Callable[..., Answer], *, include: bool) -> None:
    def check(line: str, seed: int) -> None:
        free = ask(line, seed=seed, skip_special_tokens=False)  # as /detokenize shows them
        for part in range(1, 4):
            first = part * len(free.text) // 4
            stop = free.text[first : first + part]
            if not stop or "\ufffd" in stop:
                continue
            options = {"stop": [stop, "never said"], "include_stop_str_in_output": include}
            options["skip_special_tokens"] = False
            whole = ask(line, seed=seed, **options)
            assert ask(line, seed=seed, stream=True, **options) == whole
            end = free.text.index(stop) + (len(stop) if include else 0)
            assert (whole.text, whole.ending) == (free.text[:end], ("stop", stop))
            assert whole.token_ids == free.token_ids[: len(whole.token_ids)]
            assert whole.usage["completion_tokens"] == len(whole.token_ids)
            # The last token is the one that completed the stop string.
            assert stop not in detokenize(server, whole.token_ids[:-1])[: end + len(stop) - 1]

    in_all_languages(check)
