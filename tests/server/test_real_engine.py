"""The whole way from HTTP to a (tiny, random) model and back, with the engine in a thread and in a process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx
import openai
import pytest
from tests.server.real_server import RealServer, real_server

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me of trees 🌲, 树木."}]
FORMS = ("thread", pytest.param("process", marks=pytest.mark.slow))


@pytest.fixture(scope="module", params=FORMS)
def server(request: pytest.FixtureRequest, tiny_model: Callable[..., object]) -> Iterator[RealServer]:
    with real_server(tiny_model(), server={"engine_client": request.param}) as running:
        yield running


@pytest.fixture
def client(server: RealServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def eventually(condition: Callable[[], bool], timeout_s: float = 100.0) -> bool:
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        if condition():
            return True
        time.sleep(0.05)
    return False


def at_rest(server: RealServer) -> bool:
    """Whether nothing runs and every block is free or only cached."""
    return server.metric("kvist:requests_running") == server.metric("kvist:requests_waiting") == 0 and server.metric(
        "kvist:kv_blocks_free"
    ) + server.metric("kvist:kv_blocks_evictable") == server.metric("kvist:kv_blocks_total")


def test_streamed_and_whole_answers_are_the_same_text(client: openai.OpenAI) -> None:
    options = {"model": "tiny", "messages": MESSAGES, "max_tokens": 40, "temperature": 1.0, "seed": 5}
    extra = {"extra_body": {"ignore_eos": True, "return_token_ids": True}}
    whole = client.chat.completions.create(**options, **extra)
    chunks = list(client.chat.completions.create(**options, **extra, stream=True))
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == whole.choices[0].message.content
    streamed_ids = [token for chunk in chunks[1:] for token in chunk.choices[0].token_ids]
    assert streamed_ids == whole.choices[0].token_ids
    assert len(streamed_ids) == whole.usage.completion_tokens == 40
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "length"


@pytest.mark.parametrize("seed", range(4))
def test_stop_strings_cut_the_same_streamed_or_not(client: openai.OpenAI, seed: int) -> None:
    options = {"model": "tiny", "prompt": "Once", "max_tokens": 40, "temperature": 1.0, "seed": seed}
    extra = {"ignore_eos": True}
    free = client.completions.create(**options, extra_body=extra).choices[0].text
    stop = free[len(free) // 2 : len(free) // 2 + 3]
    whole = client.completions.create(**options, stop=[stop], extra_body=extra).choices[0]
    streamed = client.completions.create(**options, stop=[stop], extra_body=extra, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == whole.text == free[: free.index(stop)]
    assert (whole.finish_reason, whole.stop_reason) == ("stop", stop)


def test_tokenize_gives_the_ids_that_the_engine_used(server: RealServer, client: openai.OpenAI) -> None:
    tokens = httpx.post(server.url + "/tokenize", json={"messages": MESSAGES}).json()["tokens"]
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=1, extra_body={"return_token_ids": True}
    )
    assert answer.prompt_token_ids == tokens
    assert answer.usage.prompt_tokens == len(tokens)
    text = httpx.post(server.url + "/tokenize", json={"prompt": "naïve 🌲"}).json()["tokens"]
    assert "naïve 🌲" in httpx.post(server.url + "/detokenize", json={"tokens": text}).json()["prompt"]
    assert client.completions.create(model="tiny", prompt=text, max_tokens=1).usage.prompt_tokens == len(text)


def test_the_second_turn_reads_the_first_from_the_cache(client: openai.OpenAI) -> None:
    prompt = list(range(5, 85))
    first = client.completions.create(model="tiny", prompt=prompt, max_tokens=20, extra_body={"return_token_ids": True})
    longer = [*prompt, *first.choices[0].token_ids, 7, 8, 9]
    second = client.completions.create(model="tiny", prompt=longer, max_tokens=4)
    whole_blocks = (len(prompt) + len(first.choices[0].token_ids) - 1) // 16 * 16
    assert second.usage.prompt_tokens_details.cached_tokens >= whole_blocks
    unread = client.completions.create(
        model="tiny", prompt=longer, max_tokens=4, extra_body={"skip_reading_prefix_cache": True}
    )
    assert unread.usage.prompt_tokens_details.cached_tokens == 0


def test_echoed_logprobs_equal_those_of_generation(client: openai.OpenAI) -> None:
    prompt = [5, 9, 30, 77]
    extra = {"return_token_ids": True, "ignore_eos": True}
    said = client.completions.create(
        model="tiny", prompt=prompt, max_tokens=6, temperature=0, logprobs=0, extra_body=extra
    ).choices[0]
    scored = client.completions.create(
        model="tiny", prompt=[*prompt, *said.token_ids], max_tokens=1, echo=True, logprobs=0
    ).choices[0]
    assert scored.logprobs.token_logprobs[4:10] == pytest.approx(said.logprobs.token_logprobs, abs=1e-4)
    assert scored.logprobs.token_logprobs[0] is None


def test_samples_and_prompts_of_one_call_are_all_there(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt=["a", "b"], n=3, max_tokens=5, seed=1, temperature=1.5)
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert len({choice.text for choice in answer.choices}) > 1


@pytest.mark.parametrize("is_streamed", [True, False])
def test_leaving_frees_all_blocks(server: RealServer, is_streamed: bool) -> None:
    address = urlsplit(server.url)
    # More than the pool holds at once: they run for long on the fastest machine.
    body = {"prompt": "a long story", "max_tokens": 450, "n": 40, "ignore_eos": True, "stream": is_streamed}
    content = json.dumps(body).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    before = server.metric("kvist:requests_finished_total", finished_reason="abort")
    connections = [socket.create_connection((address.hostname, address.port)) for _ in range(4)]
    for connection in connections:
        connection.sendall(head % len(content) + content)
    assert eventually(lambda: server.metric("kvist:requests_running") > 0)
    for connection in connections:
        connection.close()
    assert eventually(lambda: at_rest(server))
    assert server.metric("kvist:requests_finished_total", finished_reason="abort") > before
    assert server.metric("kvist:recorder_errors_total") == 0


def test_counts_add_up(server: RealServer, client: openai.OpenAI) -> None:
    client.completions.create(model="tiny", prompt="a", max_tokens=3)
    assert eventually(lambda: at_rest(server))
    started = server.metric("kvist:requests_started_total")
    assert started == server.metric("kvist:requests_finished_total") + server.metric("kvist:requests_rejected_total")
    assert server.metric("kvist:prompt_tokens_total") == server.metric("kvist:prompt_tokens_by_source_total")
    assert server.metric("kvist:time_to_first_token_seconds_count") <= started


def test_a_deadline_that_passes_is_a_504_and_counts_as_failed(server: RealServer) -> None:
    body = {"prompt": "a", "max_tokens": 500, "ignore_eos": True, "deadline_ms": 1}
    answer = httpx.post(server.url + "/v1/completions", json=body, timeout=100)
    assert answer.status_code == 504, answer.text
    assert "deadline" in answer.json()["error"]["message"]
    assert eventually(lambda: at_rest(server))


def test_goodput_counts_requests_that_met_their_targets(server: RealServer) -> None:
    def good_and_asked() -> tuple[float, float]:
        return server.metric("kvist:requests_targets_met_total"), server.metric("kvist:requests_with_targets_total")

    good, asked = good_and_asked()
    for target_ms in (600_000, 0.001):
        body = {"prompt": "a", "max_tokens": 3, "ttft_ms": target_ms}
        assert httpx.post(server.url + "/v1/completions", json=body, timeout=100).status_code == 200
    assert eventually(lambda: good_and_asked() == (good + 1, asked + 2))


def test_what_cannot_fit_is_refused_with_numbers(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="512") as caught:
        client.completions.create(model="tiny", prompt="a", max_tokens=600)
    assert (caught.value.param, caught.value.code) == ("max_tokens", "context_length_exceeded")


def test_requests_explain_themselves(server: RealServer, client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt=list(range(5, 45)), max_tokens=5)
    (explained,) = httpx.get(f"{server.url}/v1/requests/{answer.id}/explain").json()["requests"]
    assert explained["prompt_tokens"] == 40
    assert explained["output_tokens"] == answer.usage.completion_tokens
    assert [event["what"] for event in explained["events"]] == ["queued", "scheduled", "first token", "finished"]


@pytest.mark.slow
def test_one_key_never_reads_what_another_cached(tiny_model: Callable[..., object]) -> None:
    keys = {"api_key": ["first", "second"], "engine_client": "thread"}
    with real_server(tiny_model(), server=keys) as server:

        def cached_tokens(key: str, salt: str | None = None) -> int:
            body = {"prompt": list(range(5, 69)), "max_tokens": 1, "cache_salt": salt}
            answer = httpx.post(
                server.url + "/v1/completions", json=body, headers={"authorization": f"Bearer {key}"}, timeout=100
            )
            return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

        assert cached_tokens("first") == 0
        assert cached_tokens("first") == 63
        assert cached_tokens("second") == 0
        assert cached_tokens("first", "salt") == 0
        assert cached_tokens("first", "salt") == 63
        assert cached_tokens("second", "salt") == 0
        assert cached_tokens("first") == 63


@pytest.mark.slow
def test_a_full_queue_answers_429_and_the_rest_is_served(tiny_model: Callable[..., object]) -> None:
    limits = {"max_num_seqs": 1, "max_num_queued_reqs": 2}
    body = {"prompt": "a", "max_tokens": 480, "ignore_eos": True}
    with real_server(tiny_model(), scheduler=limits, server={"engine_client": "thread"}) as server:
        # One client for all: to make one takes longer than a fast machine's answer.
        with httpx.Client(base_url=server.url, timeout=100) as client, ThreadPoolExecutor(12) as pool:
            jobs = [pool.submit(client.post, "/v1/completions", json=body) for _ in range(12)]
            answers = [job.result() for job in jobs]
        by_status = [answer.status_code for answer in answers]
        assert set(by_status) == {200, 429}
        for answer in answers:
            if answer.status_code == 429:
                assert 1 <= int(answer.headers["retry-after"]) <= 3600
                assert answer.json()["error"]["code"] == "queue_full"
        assert server.metric("kvist:requests_rejected_total", reason="queue_full") == by_status.count(429)
        assert eventually(lambda: at_rest(server))


@pytest.mark.slow
def test_a_killed_engine_fails_its_requests_and_comes_back(tiny_model: Callable[..., object]) -> None:
    one_by_one = {"max_num_seqs": 1}
    with real_server(tiny_model(), scheduler=one_by_one, server={"engine_client": "process"}) as server:
        assert at_rest(server)
        assert server.metric("kvist:kv_blocks_free") == 128
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(server.process_id)], capture_output=True, text=True, check=True
        ).stdout.split()
        body = {"prompt": "a", "n": 40, "max_tokens": 480, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=100) as stream:
            lines = stream.iter_lines()
            next(lines)
            os.kill(int(children[0]), signal.SIGKILL)
            rest = "".join(lines)
        assert '"engine_unavailable"' in rest
        assert rest.endswith("data: [DONE]")
        assert httpx.get(server.url + "/health").status_code == 200
        assert eventually(lambda: httpx.get(server.url + "/ready").status_code == 200)
        answer = httpx.post(server.url + "/v1/completions", json={"prompt": "a", "max_tokens": 2}, timeout=100)
        assert answer.status_code == 200
        assert server.metric("kvist:engine_restarts_total") == 1
