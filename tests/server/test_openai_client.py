"""The official client, unmodified, against a server on a loopback port."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import openai
import pytest
from tests.fakes.scripted_generation import ScriptedGenerator

from kvist.core.errors import QueueFullError
from kvist.core.request import FinishReason

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def served(serve: Callable[..., object]) -> object:
    return serve()


@pytest.fixture
def client(served: object) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def test_chat_answers_with_text_and_usage(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="scripted", messages=MESSAGES)
    assert answer.choices[0].message.content == "Hello wide world"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (4, 3, 7)
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


def test_streamed_chat_joins_to_the_same_text(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="scripted", messages=MESSAGES, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == "Hello wide world"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, "stop"]
    assert all(chunk.usage is None for chunk in chunks)


def test_include_usage_gives_one_last_chunk_without_choices(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="scripted", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    *others, last = stream
    assert last.choices == []
    assert last.usage.completion_tokens == 3
    assert all(chunk.usage is None and chunk.choices for chunk in others)


def test_continuous_usage_counts_up(client: openai.OpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = client.chat.completions.create(model="scripted", messages=MESSAGES, stream=True, stream_options=options)
    assert [chunk.usage.completion_tokens for chunk in stream] == [0, 1, 2, 3, 3]


def test_chat_logprobs_have_the_official_shape(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="scripted", messages=MESSAGES, logprobs=True, top_logprobs=2)
    first = answer.choices[0].logprobs.content[0]
    assert (first.token, first.logprob, bytes(first.bytes)) == ("t0", -0.5, b"t0")
    assert [token.logprob for token in first.top_logprobs] == [-0.5, -9999.0]


def test_streamed_logprobs_are_one_per_token(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(model="scripted", messages=MESSAGES, logprobs=True, stream=True)
    tokens = [token.token for chunk in stream for token in (chunk.choices[0].logprobs or _NONE).content]
    assert tokens == ["t0", "t1", "t2"]


class _NONE:
    content = ()


def test_n_samples_stream_under_their_own_index(client: openai.OpenAI) -> None:
    texts = {0: "", 1: "", 2: ""}
    for chunk in client.chat.completions.create(model="scripted", messages=MESSAGES, n=3, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content
    assert texts == dict.fromkeys(range(3), "Hello wide world")


def test_completion_takes_text_and_echoes_it(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="scripted", prompt="Say ", echo=True, logprobs=1)
    assert answer.choices[0].text == "Say Hello wide world"
    assert answer.choices[0].logprobs.token_logprobs[:2] == [None, -0.5]
    assert len(answer.choices[0].logprobs.tokens) == 5 + 3
    assert answer.choices[0].logprobs.tokens[:2] == ["\x01", "t83"]
    assert answer.choices[0].logprobs.text_offset[:3] == [0, 0, 3]  # BOS is no part of the text


def test_token_ids_get_no_bos(client: openai.OpenAI, served: object) -> None:
    client.completions.create(model="scripted", prompt=[5, 6, 7])
    client.completions.create(model="scripted", prompt="ab")
    assert [list(request.prompt_token_ids) for request in served.generator.requests] == [[5, 6, 7], [1, 97, 98]]


@pytest.mark.parametrize("prompts", [["a", "bc"], [[5, 6], [7]], ["a", [8, 9]]])
def test_several_prompts_are_choices_in_their_order(client: openai.OpenAI, prompts: list[object]) -> None:
    answer = client.completions.create(model="scripted", prompt=prompts, n=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert {choice.text for choice in answer.choices} == {"Hello wide world"}
    assert answer.usage.completion_tokens == 12


def test_several_prompts_stream_side_by_side(client: openai.OpenAI) -> None:
    texts = {0: "", 1: ""}
    stream = client.completions.create(
        model="scripted", prompt=["a", "b"], stream=True, stream_options={"include_usage": True}
    )
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == {0: "Hello wide world", 1: "Hello wide world"}
    assert chunk.usage.completion_tokens == 6


def test_return_token_ids_shows_prompt_and_output(client: openai.OpenAI) -> None:
    extra = {"return_token_ids": True}
    answer = client.completions.create(model="scripted", prompt=[5, 6], extra_body=extra)
    assert (answer.choices[0].prompt_token_ids, answer.choices[0].token_ids) == ([5, 6], [0, 1, 2])
    chunks = list(client.completions.create(model="scripted", prompt=[5, 6], stream=True, extra_body=extra))
    assert chunks[0].choices[0].prompt_token_ids == [5, 6]
    assert [token for chunk in chunks for token in chunk.choices[0].token_ids] == [0, 1, 2]
    chat = list(client.chat.completions.create(model="scripted", messages=MESSAGES, stream=True, extra_body=extra))
    assert chat[0].prompt_token_ids == [1, 72, 105, 62]


def test_models_show_what_is_in_force(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["scripted", "other-name"]
    model = client.models.retrieve("other-name")
    assert model.max_model_len == 512
    assert model.default_sampling_params["temperature"] == 0.7


def test_bad_values_are_bad_requests_naming_the_field(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="scripted", messages=MESSAGES, temperature=-1)
    assert caught.value.param == "temperature"


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="scripted"):
        client.chat.completions.create(model="gpt-9", messages=MESSAGES)


def test_a_full_queue_is_a_rate_limit_with_retry_after(client: openai.OpenAI, served: object) -> None:
    served.generator.refuse_with = QueueFullError("the queue is full", retry_after_s=6.2)
    for stream in (False, True):
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(model="scripted", messages=MESSAGES, stream=stream)
        assert caught.value.response.headers["retry-after"] == "7"
    assert served.state.recorder.num_rejected["queue_full"] == 2


@pytest.mark.parametrize("failure", [FinishReason.ERROR, FinishReason.ABORT, ValueError("a bug")])
def test_a_failure_in_mid_stream_reaches_the_client_as_an_error(serve: Callable[..., object], failure: object) -> None:
    generator = ScriptedGenerator()
    generator.fail_after, generator.fail_with = 2, failure
    served = serve(generator)
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0) as client:
        said = []
        stream = client.chat.completions.create(model="scripted", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError) as caught:
            said.extend(chunk.choices[0].delta.content for chunk in stream)
        assert "".join(said) == "Hello wide"
        assert "a bug" not in str(caught.value)
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="scripted", messages=MESSAGES)
