"""Maps kvist's errors to HTTP: one status per class, in OpenAI's error shape. Never shows a traceback."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec
from starlette.responses import Response

from kvist.core import errors
from kvist.core.errors import KvistError

STARTING_RETRY_AFTER_S = 2.0


class BodyTooLargeError(KvistError):
    """The request body is over the configured bound."""


class UnsupportedMediaTypeError(KvistError):
    """The request body is not JSON."""


class GenerationFailedError(KvistError):
    """The engine gave up on this request for a reason that is not the client's."""


class _Shape(NamedTuple):
    status: int
    type: str
    code: str | None


_SHAPES: tuple[tuple[type[KvistError], _Shape], ...] = (  # the first class that fits counts
    (errors.RequestTooLongError, _Shape(400, "invalid_request_error", "context_length_exceeded")),
    (errors.InvalidRequestError, _Shape(400, "invalid_request_error", None)),
    (BodyTooLargeError, _Shape(413, "invalid_request_error", "request_too_large")),
    (UnsupportedMediaTypeError, _Shape(415, "invalid_request_error", "unsupported_media_type")),
    (errors.AuthenticationError, _Shape(401, "authentication_error", "invalid_api_key")),
    (errors.ModelNotFoundError, _Shape(404, "invalid_request_error", "model_not_found")),
    (errors.QueueFullError, _Shape(429, "rate_limit_error", "queue_full")),
    (errors.EngineUnavailableError, _Shape(503, "server_error", "engine_unavailable")),
    (errors.KVPoolExhaustedError, _Shape(503, "server_error", "kv_pool_exhausted")),
    (errors.DeadlineExceededError, _Shape(504, "server_error", "deadline_exceeded")),
    (GenerationFailedError, _Shape(500, "server_error", "generation_failed")),
    (KvistError, _Shape(500, "server_error", None)),
)
_HTTP_TYPES = {404: "not_found", 405: "method_not_allowed"}


def error_response(error: KvistError) -> Response:
    shape = _shape_of(error)
    headers = {}
    retry_after_s = retry_after(error)
    if retry_after_s is not None:
        headers["retry-after"] = str(retry_after_s)
    if shape.status == 401:
        headers["www-authenticate"] = "Bearer"
    if shape.status == 413:
        headers["connection"] = "close"  # the rest of the body is not read
    return Response(error_body(error), shape.status, headers, media_type="application/json")


def error_body(error: KvistError) -> bytes:
    """The JSON that stands in the response, or in an event of a stream that has begun."""
    shape = _shape_of(error)
    param = error.param if isinstance(error, errors.InvalidRequestError) else None
    return _body(str(error), shape.type, param, shape.code)


def http_error_response(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """An error that is none of kvist's: an unknown path, a wrong method, a bug."""
    kind = _HTTP_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return Response(_body(message, kind, None, kind), status, headers, media_type="application/json")


def retry_after(error: KvistError) -> int | None:
    """Whole seconds after which the same request may succeed; None if waiting does not help."""
    if isinstance(error, errors.QueueFullError):
        return max(1, min(3600, math.ceil(error.retry_after_s)))
    if isinstance(error, errors.EngineUnavailableError) and not error.comes_back:
        return None
    if isinstance(error, errors.EngineUnavailableError | errors.KVPoolExhaustedError):
        return math.ceil(STARTING_RETRY_AFTER_S)
    return None


def _shape_of(error: KvistError) -> _Shape:
    return next(shape for kind, shape in _SHAPES if isinstance(error, kind))


def _body(message: str, kind: str, param: str | None, code: str | None) -> bytes:
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})
