"""What probes, dashboards and operators see."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.fakes.scripted_generation import ScriptedGenerator

from kvist.server.backend import ServerState

Call = Callable[..., httpx.Response]


def generator_in(state: str = "ready", *, heartbeat_age_s: float = 0.1, reason: str | None = None) -> ScriptedGenerator:
    generator = ScriptedGenerator()
    generator.client.state, generator.client.heartbeat_age_s, generator.client.reason = state, heartbeat_age_s, reason
    return generator


@pytest.mark.parametrize("path", ["/health", "/ping"])
@pytest.mark.parametrize(
    ("generator", "is_alive", "is_ready"),
    [
        (generator_in(), True, True),
        (generator_in(heartbeat_age_s=30.0), True, True),  # a long step: busy is not dead
        (generator_in(heartbeat_age_s=900.0), False, False),
        (generator_in("starting", heartbeat_age_s=900.0, reason="the engine was lost"), True, False),
        (generator_in("draining"), True, False),
        (generator_in("dead", reason="the engine died 5 times"), False, False),
    ],
    ids=["idle", "busy", "wedged", "restarting", "draining", "dead"],
)
def test_liveness_is_the_step_loop_and_readiness_is_taking_requests(
    call: Call, path: str, generator: ScriptedGenerator, is_alive: bool, is_ready: bool
) -> None:
    live, ready = call("GET", path, generator=generator), call("GET", "/ready", generator=generator)
    assert live.status_code == (200 if is_alive else 503)
    assert ready.status_code == (200 if is_ready else 503)
    if not is_alive:
        assert live.json()["error"]["message"]
    if generator.client.reason:
        assert generator.client.reason in ready.json()["error"]["message"]


@pytest.mark.parametrize(
    "route", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/reset_prefix_cache", "/start_profile"]
)
def test_draining_refuses_with_retry_after(call: Call, route: str) -> None:
    def drain(state: ServerState) -> None:
        state.is_draining = True

    body = {"messages": [{"role": "user", "content": "a"}]} if "chat" in route else {"prompt": "a"}
    answer = call("POST", route, json=body, change=drain)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1


def test_an_engine_that_was_given_up_invites_nobody_to_try_again(call: Call) -> None:
    dead = generator_in("dead", reason="the engine died 5 times")
    answer = call("POST", "/v1/completions", json={"prompt": "a"}, generator=dead)
    assert answer.status_code == 503
    assert "retry-after" not in answer.headers
    assert "Try again" not in answer.json()["error"]["message"]


def test_metrics_show_the_engine_and_the_answers(call: Call) -> None:
    def change(state: ServerState) -> None:
        state.recorder.record_http_response("/v1/completions", 400)

    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(call("GET", "/metrics", change=change).text)
        for sample in family.samples
    }
    assert samples["kvist:requests_waiting", "0", "scripted"] == 2
    assert samples["kvist:kv_usage_fraction", "0", "scripted"] == pytest.approx(0.2)
    assert samples["kvist:http_responses_total", "/v1/completions", "0", "400", "scripted"] == 1
    assert samples["kvist:startup_phase_seconds", "0", "load", "scripted"] == 0.5


def test_made_up_paths_do_not_grow_the_metrics(serve: Callable[..., object]) -> None:
    served = serve()
    for number in range(5):
        assert httpx.get(f"{served.url}/made/up/{number}").status_code == 404
    # An answer is counted just after its last byte is out.
    assert served.eventually(lambda: dict(served.state.recorder.http_responses) == {("unknown", 404): 5})


def test_the_prefix_cache_can_be_reset(call: Call) -> None:
    generator = ScriptedGenerator()
    assert call("POST", "/reset_prefix_cache", generator=generator).json() == {"is_empty": True}
    assert generator.client.num_resets == 1


def test_a_trace_is_begun_and_ended_under_vllms_names(call: Call) -> None:
    assert call("POST", "/start_profile").json() == {"file": "trace.json"}
    refused = call("POST", "/stop_profile")
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "no trace is being written"


def test_version_is_the_packages_own(call: Call) -> None:
    assert call("GET", "/version").json()["version"].count(".") == 2


def test_the_chat_page_needs_nothing_from_elsewhere(call: Call) -> None:
    answer = call("GET", "/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    for outside in ("src=", "@import", "url(", '<link rel="stylesheet"', "innerHTML"):
        assert outside not in answer.text
