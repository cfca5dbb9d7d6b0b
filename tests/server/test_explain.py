"""Explanations of requests, for those who made them."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from kvist.core.request import PUBLIC_DOMAIN, FinishReason
from kvist.core.request_events import EventBatch, Finished, Queued, Scheduled, TokensSampled
from kvist.server.backend import ServerState
from kvist.server.identity import ApiKeys

Call = Callable[..., httpx.Response]


def remember(state: ServerState) -> None:
    keys = ApiKeys(["mine", "other"])
    domain = keys.domain_of("Bearer mine") if state.keys.are_required else PUBLIC_DOMAIN
    state.owners.note("call-1", domain)
    state.owners.note("call-12", domain)
    events = [
        Queued("call-1-7", 1.0, 100),
        Scheduled("call-1-7", 1.5, 64),
        TokensSampled("call-1-7", 2.0, [1]),
        TokensSampled("call-1-7", 3.0, [1]),
        Finished("call-1-7", 3.0, FinishReason.LENGTH, 100, 2, 64, 0),
        Queued("call-1-7.1", 1.0, 100),
        Queued("call-12-8", 1.0, 100),
        Scheduled("call-12-8", 1.0, 0),
        TokensSampled("call-12-8", 2.0, [1]),
        TokensSampled("call-12-8", 3.0, [1, 2, 3], None, 5),
    ]
    state.on_events(EventBatch(3.0, events))


@pytest.mark.parametrize("name", ["call-1", "chatcmpl-call-1", "cmpl-call-1"])
def test_a_request_is_explained_by_any_of_its_names(call: Call, name: str) -> None:
    first, second = call("GET", f"/v1/requests/{name}/explain", change=remember).json()["requests"]
    assert first["summary"] == (
        "waited 0.500 s in the queue, read 64 of 100 prompt tokens from the cache, computed the rest in 0.500 s, "
        "then gave 2 tokens in 1.000 s, ended by length"
    )
    assert (first["queue_time_s"], first["ttft_s"], first["cached_tokens"]) == (0.5, 1.0, 64)
    assert first["events"][0] == {"at_s": 0.0, "what": "queued", "num_tokens": 100}
    assert second["summary"] == "has not left the queue"


def test_drafts_are_explained(call: Call) -> None:
    (only,) = call("GET", "/v1/requests/call-12/explain", change=remember).json()["requests"]
    assert (only["draft_tokens"], only["accepted_draft_tokens"]) == (5, 2)
    assert "then gave 4 tokens in 1.000 s, of which 2 were drafted (5 tries)" in only["summary"]


def test_nobody_is_told_of_another_callers_requests(call: Call) -> None:
    options = {"api_key": ("mine", "other")}
    for key, status in (("mine", 200), ("other", 404)):
        headers = {"authorization": f"Bearer {key}"}
        answer = call("GET", "/v1/requests/call-1/explain", change=remember, options=options, headers=headers)
        assert answer.status_code == status


def test_an_unknown_request_is_not_found(call: Call) -> None:
    answer = call("GET", "/v1/requests/none/explain", change=remember)
    assert answer.status_code == 404
    assert "'none'" in answer.json()["error"]["message"]
