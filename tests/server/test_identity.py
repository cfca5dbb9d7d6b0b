"""Who may ask, and who shares a cache with whom."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.scripted_generation import ScriptedGenerator

from kvist.core.errors import AuthenticationError, ConfigError
from kvist.kvcache.key_domain import narrow_domain
from kvist.server.app import ROUTES
from kvist.server.edge import OPEN_PATHS
from kvist.server.identity import ApiKeys, load_api_keys

Call = Callable[..., httpx.Response]
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
KEYS = {"api_key": ("sesame", "other key")}
GRID = [
    (method, route.path.replace("{model:path}", "scripted"))
    for route in ROUTES
    for method in sorted((route.methods or set()) - {"HEAD"})
]


@pytest.mark.parametrize(("method", "path"), [*GRID, ("GET", "/nothing"), ("POST", "/health/"), ("GET", "/health/x")])
def test_keys_guard_every_route_but_liveness(call: Call, method: str, path: str) -> None:
    body = CHAT if method == "POST" else None
    without = call(method, path, options=KEYS, json=body)
    if path in OPEN_PATHS:
        assert without.status_code == 200
        return
    assert without.status_code == 401
    assert without.json()["error"]["code"] == "invalid_api_key"
    assert without.headers["www-authenticate"].startswith("Basic" if path == "/" else "Bearer")
    for wrong in ("Bearer wrong", "Bearer ", "Bearer", "sesame", "Basic !!!", "Bearer sesame2", "Bearer sésame"):
        answer = call(method, path, options=KEYS, json=body, headers={"authorization": wrong.encode()})
        assert answer.status_code == 401, wrong
    with_key = call(method, path, options=KEYS, json=body, headers={"authorization": "Bearer sesame"})
    assert with_key.status_code != 401


def test_a_key_may_have_any_characters(call: Call) -> None:
    options = {"api_key": ("ключ",)}
    known = {"authorization": "Bearer ключ".encode()}
    assert call("GET", "/v1/models", options=options, headers=known).status_code == 200
    assert call("GET", "/v1/models", options=options, headers={"x-api-key": "ключ".encode()}).status_code == 200
    for wrong in ("Bearer кл".encode(), b"Bearer \xff\xfe", "Basic ключ".encode(), "Bearer ключ".encode("utf-16")):
        assert call("GET", "/v1/models", options=options, headers={"authorization": wrong}).status_code in (400, 401)


def test_a_browser_may_send_the_key_as_a_password(call: Call) -> None:
    answer = call("GET", "/", options=KEYS, auth=("anyone", "sesame"))
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert call("GET", "/v1/models", options=KEYS, headers={"x-api-key": "other key"}).status_code == 200


def domains(call: Call, *requests: tuple[str | None, str | None]) -> list[bytes]:
    generator = ScriptedGenerator()
    for key, salt in requests:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        body = {**CHAT, **({"cache_salt": salt} if salt is not None else {})}
        answer = call(
            "POST", "/v1/chat/completions", json=body, headers=headers, options=KEYS if key else {}, generator=generator
        )
        assert answer.status_code == 200
    return [request.domain for request in generator.requests]


def test_the_same_key_shares_and_another_does_not(call: Call) -> None:
    first, again, other = domains(call, ("sesame", None), ("sesame", None), ("other key", None))
    assert first == again
    assert first != other


def test_without_keys_all_share_and_a_salt_only_narrows(call: Call) -> None:
    first, again, salted, same_salt, other_salt = domains(
        call, (None, None), (None, None), (None, "a"), (None, "a"), (None, "b")
    )
    assert first == again
    assert salted == same_salt
    assert len({first, salted, other_salt}) == 3
    mine, yours = domains(call, ("sesame", "a"), ("other key", "a"))
    assert mine != yours


@given(st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), min_size=2, max_size=8, unique=True))
def test_different_callers_and_salts_never_collide(pairs: list[tuple[str, str]]) -> None:
    keys = ApiKeys([f"k{key}" for key, _ in pairs])
    found = {narrow_domain(keys.domain_of(f"Bearer k{key}".strip()), salt) for key, salt in pairs if key == key.strip()}
    assert len(found) == len({pair for pair in pairs if pair[0] == pair[0].strip()})


def test_keys_come_from_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# comment\nfirst\n\n second \n")
    keys = load_api_keys(("third",), str(file))
    for known in ("first", "second", "third"):
        keys.domain_of(f"Bearer {known}")
    with pytest.raises(AuthenticationError):
        keys.domain_of("Bearer # comment")


@pytest.mark.parametrize("content", [None, "", "# nothing\n"])
def test_a_key_file_that_would_leave_the_server_open_is_an_error(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match="api_key_file"):
        load_api_keys((), str(file))


def test_cors_lets_named_origins_in_and_no_others(call: Call) -> None:
    options = {"allowed_origins": ("https://app.example",), **KEYS}
    ask = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    preflight = call(
        "OPTIONS", "/v1/chat/completions", options=options, headers={"origin": "https://app.example", **ask}
    )
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://app.example"
    denied = call("OPTIONS", "/v1/chat/completions", options=options, headers={"origin": "https://evil.example", **ask})
    assert denied.status_code == 400
    assert "access-control-allow-origin" not in denied.headers
    headers = {"origin": "https://app.example", "authorization": "Bearer sesame"}
    answer = call("POST", "/v1/chat/completions", options=options, json=CHAT, headers=headers)
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    refused = call(
        "POST", "/v1/chat/completions", options=options, json=CHAT, headers={"origin": "https://app.example"}
    )
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://app.example"


def test_without_allowed_origins_no_other_page_may_read(call: Call) -> None:
    answer = call("GET", "/v1/models", headers={"origin": "https://app.example"})
    assert "access-control-allow-origin" not in answer.headers
