"""What a request may hold, and what it is told when it holds something else."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.fakes.scripted_generation import ScriptedGenerator

from kvist.server.openai_schema import UNSERVED

Call = Callable[..., httpx.Response]
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
COMPLETION = {"prompt": "Hi"}
ROUTES = {"/v1/chat/completions": CHAT, "/v1/completions": COMPLETION, "/tokenize": COMPLETION}


def assert_error(answer: httpx.Response, status: int, param: str | None = None) -> str:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert "Traceback" not in error["message"]
    return error["message"]


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("field", sorted(UNSERVED))
def test_fields_of_features_that_are_not_served_are_refused_by_name(call: Call, route: str, field: str) -> None:
    message = assert_error(call("POST", route, json={**ROUTES[route], field: {"x": 1}}), 400, field)
    assert field in message
    for harmless in (None, *UNSERVED[field]):
        assert call("POST", route, json={**ROUTES[route], field: harmless}).status_code == 200


def test_an_unknown_field_is_named_with_the_nearest_known_one(call: Call) -> None:
    message = assert_error(call("POST", "/v1/completions", json={**COMPLETION, "temprature": 1}), 400, "temprature")
    assert "Did you mean temperature?" in message


def test_lenient_mode_serves_and_names_what_it_ignored(call: Call) -> None:
    body = {**CHAT, "temprature": 1, "tools": [{"type": "function"}], "bad\r\nname": 0}
    answer = call("POST", "/v1/chat/completions", json=body, options={"lenient": True})
    assert answer.status_code == 200
    assert answer.headers["x-kvist-ignored-fields"] == "temprature,tools,bad??name"


@pytest.mark.parametrize("route", ROUTES)
def test_null_means_absent_for_every_field(call: Call, route: str) -> None:
    from kvist.server import openai_schema

    schema = {
        "/v1/chat/completions": openai_schema.ChatCompletionRequest,
        "/v1/completions": openai_schema.CompletionRequest,
        "/tokenize": openai_schema.TokenizeRequest,
    }[route]
    nulls = dict.fromkeys((*schema.__struct_fields__, *UNSERVED))
    assert call("POST", route, json={**nulls, **ROUTES[route]}).status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 2**40}, "top_k"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a"] * 65}, "stop"),
        ({"stop": 5}, "stop"),
        ({"logit_bias": {"hello": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options"),
        ({"stream": "yes"}, "stream"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"ttft_ms": 0}, "ttft_ms"),
        ({"tpot_ms": 1e10}, "tpot_ms"),
        ({"deadline_ms": -5}, "deadline_ms"),
        ({"priority": 2**31}, "priority"),
        ({"request_id": "two words"}, "request_id"),
        ({"request_id": ""}, "request_id"),
        ({"seed": 2**70}, "seed"),
        ({"prompt_logprobs": 2, "stream": True}, "prompt_logprobs"),
    ],
)
@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
def test_bad_values_name_their_field(call: Call, route: str, body: dict[str, object], param: str) -> None:
    assert_error(call("POST", route, json={**ROUTES[route], **body}), 400, param)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": {"text": "a"}}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [10**30]}, "prompt"),
        ({"prompt": ["a"] * 1025}, "prompt"),
        ({"prompt": ["a"] * 100, "n": 11}, "n"),
        ({"prompt": [5] * 513}, "prompt"),
        ({"prompt": [[5], [6] * 513]}, "prompt"),
        ({"prompt": "a" * 600}, "prompt"),
        ({"prompt": "a", "best_of": 3}, "best_of"),
        ({"prompt": "a", "suffix": "end"}, "suffix"),
        ({"prompt": "a", "logprobs": 1000}, "logprobs"),
        ({"prompt": "a", "logprobs": 1, "echo": True, "stream": True}, "echo"),
    ],
)
def test_bad_completions_name_their_field(call: Call, body: dict[str, object], param: str) -> None:
    assert_error(call("POST", "/v1/completions", json=body), 400, param)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": ["Hi"]}, "messages"),
        ({"messages": [{"role": "robot", "content": "Hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({**CHAT, "top_logprobs": 2}, "top_logprobs"),
        ({**CHAT, "logprobs": True, "top_logprobs": 1000}, "logprobs"),
        ({**CHAT, "max_tokens": 2, "max_completion_tokens": 3}, "max_completion_tokens"),
        ({**CHAT, "continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({**CHAT, "prompt": "Hi"}, "prompt"),
    ],
)
def test_bad_chats_name_their_field(call: Call, body: dict[str, object], param: str) -> None:
    assert_error(call("POST", "/v1/chat/completions", json=body), 400, param)


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[1]", 400),
        (b"null", 400),
        (b"\xff\xfe", 400),
        (b'{"prompt": "\\ud800"}', 400),
        (b'{"prompt": NaN}', 400),
        (b'{"prompt": "a", "temperature": 1e999}', 400),
        (b'{"prompt": "a", "n": ' + b"9" * 5000 + b"}", 400),
        (b"[" * 100_000, 400),
        (b'{"prompt":' * 100_000, 400),
        (b'{"prompt": ' + b"[" * 900 + b"]" * 900 + b"}", 400),
        (b'{"prompt": "' + b"a" * 2000 + b'"}', 413),
    ],
    ids=range(13),
)
@pytest.mark.parametrize("route", ROUTES)
def test_bodies_that_are_no_json_object_or_too_large_are_refused(
    call: Call, route: str, content: bytes, status: int
) -> None:
    options = {"max_request_bytes": 1024 if status == 413 else 1 << 20}
    answer = call("POST", route, content=content, headers={"content-type": "application/json"}, options=options)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_bodies_of_another_type_are_refused(call: Call, content_type: str) -> None:
    headers = {"content-type": content_type} if content_type else {}
    message = assert_error(call("POST", "/v1/completions", content=b'{"prompt": "a"}', headers=headers), 415)
    assert "application/json" in message


def test_unknown_routes_and_methods_have_the_same_error_shape(call: Call) -> None:
    assert_error(call("GET", "/v1/nothing"), 404)
    assert_error(call("POST", "/v1/embeddings", json={}), 404)
    answer = call("GET", "/v1/chat/completions")
    assert_error(answer, 405)
    assert answer.headers["allow"] == "POST"
    assert_error(call("GET", "/v1/models/none"), 404)


def test_a_bug_is_a_plain_500(call: Call) -> None:
    generator = ScriptedGenerator()
    generator.refuse_with = ZeroDivisionError("secret detail")
    message = assert_error(call("POST", "/v1/completions", json=COMPLETION, generator=generator), 500)
    assert "secret detail" not in message


def test_the_client_chooses_the_request_id_or_gets_one(call: Call) -> None:
    answer = call("POST", "/v1/completions", json=COMPLETION, headers={"x-request-id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    assert answer.json()["id"] == "cmpl-mine-1"
    assert call("POST", "/v1/completions", json={**COMPLETION, "request_id": "b"}).json()["id"] == "cmpl-b"
    for odd in ("two words", "x" * 129):
        answer = call("GET", "/version", headers={"x-request-id": odd})
        assert len(answer.headers["x-request-id"]) == 32


def test_options_reach_the_generator(call: Call) -> None:
    generator = ScriptedGenerator()
    body = {
        **COMPLETION, "top_k": 5, "min_p": 0.1, "seed": 3, "stop": "x", "stop_token_ids": [4], "ignore_eos": True,
        "logit_bias": {"7": -100}, "max_tokens": 3, "min_tokens": 1, "priority": -2, "deadline_ms": 1500,
        "ttft_ms": 100, "tpot_ms": 20, "skip_reading_prefix_cache": True, "repetition_penalty": 1.1,
    }  # fmt: skip
    assert call("POST", "/v1/completions", json=body, generator=generator).status_code == 200
    (request,) = generator.requests
    sampling = request.sampling
    assert (sampling.top_k, sampling.min_p, sampling.seed, sampling.stop) == (5, 0.1, 3, ("x",))
    assert (sampling.stop_token_ids, sampling.ignore_eos, sampling.logit_bias) == ((4,), True, {7: -100.0})
    assert (sampling.max_tokens, sampling.min_tokens, sampling.repetition_penalty) == (3, 1, 1.1)
    assert (request.priority, request.deadline_s, request.ttft_ms, request.tpot_ms) == (-2, 1.5, 100, 20)
    assert request.skip_reading_prefix_cache


def test_top_k_minus_one_is_off_as_it_was_once_spelt(call: Call) -> None:
    generator = ScriptedGenerator()
    call("POST", "/v1/completions", json={**COMPLETION, "top_k": -1}, generator=generator)
    assert generator.requests[0].sampling.top_k == 0


def test_the_request_overrides_the_model_which_overrides_built_in_values(call: Call) -> None:
    generator = ScriptedGenerator()
    call("POST", "/v1/completions", json=COMPLETION, generator=generator)
    call("POST", "/v1/completions", json={**COMPLETION, "temperature": 0, "top_p": 0.5}, generator=generator)
    default, asked = (request.sampling for request in generator.requests)
    assert (default.temperature, default.top_p, default.max_tokens) == (0.7, 1.0, 16)
    assert (asked.temperature, asked.top_p) == (0.0, 0.5)


def test_lengths_default_to_what_fits(call: Call) -> None:
    generator = ScriptedGenerator()
    call("POST", "/v1/completions", json={"prompt": "a" * 505}, generator=generator)
    call("POST", "/v1/chat/completions", json=CHAT, generator=generator)
    call("POST", "/v1/chat/completions", json={**CHAT, "max_completion_tokens": 9}, generator=generator)
    assert [request.sampling.max_tokens for request in generator.requests] == [6, None, 9]


def test_prompts_can_be_truncated_from_the_left(call: Call) -> None:
    generator = ScriptedGenerator()
    call("POST", "/v1/completions", json={"prompt": [5, 6, 7], "truncate_prompt_tokens": 2}, generator=generator)
    long = {"prompt": list(range(900)), "truncate_prompt_tokens": 2}
    call("POST", "/v1/completions", json=long, generator=generator)
    assert [list(request.prompt_token_ids) for request in generator.requests] == [[6, 7], [898, 899]]


def test_tokenize_gives_the_ids_that_the_engine_gets_and_detokenize_undoes_it(call: Call) -> None:
    generator = ScriptedGenerator()
    call("POST", "/v1/chat/completions", json=CHAT, generator=generator)
    answer = call("POST", "/tokenize", json={**CHAT, "return_token_strs": True}).json()
    assert answer["tokens"] == list(generator.requests[0].prompt_token_ids)
    assert (answer["count"], answer["max_model_len"]) == (4, 512)
    assert answer["token_strs"] == ["\x01", "H", "i", ">"]
    text = call("POST", "/tokenize", json={"prompt": "Hi", "add_special_tokens": False}).json()
    assert text["tokens"] == [72, 105]
    assert call("POST", "/detokenize", json={"tokens": text["tokens"]}).json() == {"prompt": "Hi"}
    assert_error(call("POST", "/detokenize", json={"tokens": [1000]}), 400, "tokens")
    assert_error(call("POST", "/tokenize", json={}), 400, "prompt")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    ["prompt", "messages", "stop", "n", "stream", "stream_options", "logit_bias", "temperature", "max_tokens", "model",
     "logprobs", "echo", "seed", "top_k", "stop_token_ids", "chat_template_kwargs", "tokens", "cache_salt", "priority",
     "truncate_prompt_tokens", "deadline_ms", "metadata", "min_tokens", "prompt_logprobs", "top_logprobs"]
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    route=st.sampled_from([*ROUTES, "/detokenize"]),
    fields=st.dictionaries(FIELDS, JSON, max_size=4),
    is_based_on_a_good_one=st.booleans(),
)
@example("/v1/completions", {"n": 128, "prompt": ["a", "b"]}, False)
@example("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}, None]}, False)
def test_no_json_whatever_makes_the_server_fail(
    call: Call, route: str, fields: dict[str, object], is_based_on_a_good_one: bool
) -> None:
    body = {**ROUTES.get(route, {}), **fields} if is_based_on_a_good_one else fields
    answer = call("POST", route, content=json.dumps(body).encode(), headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400, 404), answer.text
    if answer.status_code != 200:
        assert answer.json()["error"]["message"]
