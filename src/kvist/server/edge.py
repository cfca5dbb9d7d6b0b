"""The outermost layers: request ids, identity, one access log line, one count, and no traceback for anyone."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvist.core.errors import AuthenticationError, KvistError
from kvist.metrics.recorder import MetricsRecorder
from kvist.server.error_responses import error_response, http_error_response
from kvist.server.identity import ApiKeys

OPEN_PATHS = frozenset({"/health", "/ping"})  # liveness: a probe has no key
CLIENT_LEFT = 499
_SAFE_ID = re.compile(r"[\x21-\x7e]{1,128}")

logger = logging.getLogger("kvist.server")


class EdgeMiddleware:
    """Gives each request an id (the client's, if it sent a sane one), answers bugs with a plain 500, counts, logs."""

    def __init__(self, app: ASGIApp, *, recorder: MetricsRecorder, now_s: Callable[[], float]) -> None:
        self._app = app
        self._recorder = recorder
        self._now_s = now_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _header(scope, b"x-request-id") or ""
        if not _SAFE_ID.fullmatch(request_id):
            request_id = uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        start_s, status = self._now_s(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except ClientDisconnect:
            status = CLIENT_LEFT
        except Exception:  # a bug in one request must not be shown to its client, nor stop the others
            logger.exception("request_failed request_id=%s", request_id)
            if status == 0:
                response = http_error_response(500, f"the server failed; its log says why under {request_id}")
                await response(scope, receive, send_with_id)
            status = 500
        finally:
            self._finish(scope, request_id, status, self._now_s() - start_s)

    def _finish(self, scope: Scope, request_id: str, status: int, duration_s: float) -> None:
        route = getattr(scope.get("route"), "path", "unknown")  # not the path: a client could make up any number
        self._recorder.record_http_response(route, status)
        level = logging.DEBUG if scope["path"] in OPEN_PATHS | {"/ready", "/metrics"} else logging.INFO
        path = scope["path"][:100].encode("unicode_escape").decode()
        logger.log(
            level,
            "http request_id=%s %s %s status=%d seconds=%.3f",
            request_id,
            scope["method"],
            path,
            status,
            duration_s,
        )


class AuthenticationMiddleware:
    """Lets nobody without a known key past, except to OPEN_PATHS. Leaves the caller's key domain in the scope."""

    def __init__(self, app: ASGIApp, *, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            try:
                domain = self._keys.domain_of(_key_header(scope, b"authorization"), _key_header(scope, b"x-api-key"))
            except AuthenticationError as error:
                await self._refuse(error, scope, receive, send)
                return
            scope["state"]["key_domain"] = domain
        await self._app(scope, receive, send)

    async def _refuse(self, error: KvistError, scope: Scope, receive: Receive, send: Send) -> None:
        response = error_response(error)
        if scope["path"] == "/":  # a browser then asks its user, and sends the key with everything the page does
            response.headers["www-authenticate"] = 'Basic realm="kvist: any name, the API key as password"'
        response.headers["connection"] = "close"  # a body that nobody read must not be taken for a request
        await response(scope, receive, send)


def _header(scope: Scope, name: bytes) -> str | None:
    value = _header_bytes(scope, name)
    return None if value is None else value.decode("latin-1")


def _key_header(scope: Scope, name: bytes) -> str | None:
    """Clients send what lies outside ASCII as UTF-8; bytes that are none are told apart all the same."""
    value = _header_bytes(scope, name)
    return None if value is None else value.decode("utf-8", errors="surrogateescape")


def _header_bytes(scope: Scope, name: bytes) -> bytes | None:
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    return next((value for key, value in headers if key == name), None)
