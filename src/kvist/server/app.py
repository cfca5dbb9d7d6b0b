"""Puts the routes and the layers around them together."""

from __future__ import annotations

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kvist.core.errors import KvistError
from kvist.server import operations_routes, text_routes
from kvist.server.backend import ServerState
from kvist.server.chat_completions import chat_completions
from kvist.server.chat_page import chat_page
from kvist.server.completions import completions
from kvist.server.edge import AuthenticationMiddleware, EdgeMiddleware
from kvist.server.error_responses import error_response, http_error_response
from kvist.server.explain_route import explain

ROUTES = (
    Route("/", chat_page, methods=["GET"]),
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    Route("/v1/models", operations_routes.list_models, methods=["GET"]),
    Route("/v1/models/{model:path}", operations_routes.get_model, methods=["GET"]),
    Route("/v1/requests/{call_id}/explain", explain, methods=["GET"]),
    Route("/tokenize", text_routes.tokenize, methods=["POST"]),
    Route("/detokenize", text_routes.detokenize, methods=["POST"]),
    Route("/health", operations_routes.health, methods=["GET"]),
    Route("/ping", operations_routes.health, methods=["GET"]),
    Route("/ready", operations_routes.ready, methods=["GET"]),
    Route("/version", operations_routes.version, methods=["GET"]),
    Route("/metrics", operations_routes.metrics, methods=["GET"]),
    Route("/reset_prefix_cache", operations_routes.reset_prefix_cache, methods=["POST"]),
    Route("/start_profile", operations_routes.start_profile, methods=["POST"]),
    Route("/stop_profile", operations_routes.stop_profile, methods=["POST"]),
)


def build_app(state: ServerState, now_s: Callable[[], float]) -> Starlette:
    """The ASGI application around `state`. now_s: a clock that does not go back, for durations in the log."""
    middleware = [Middleware(EdgeMiddleware, recorder=state.recorder, now_s=now_s)]
    if state.config.allowed_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(state.config.allowed_origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=["x-request-id", "x-kvist-ignored-fields", "retry-after"],
            )
        )
    middleware.append(Middleware(AuthenticationMiddleware, keys=state.keys))
    app = Starlette(
        routes=ROUTES,
        middleware=middleware,
        exception_handlers={KvistError: _on_kvist_error, HTTPException: _on_http_error},
    )
    app.router.redirect_slashes = False
    app.state.server = state
    return app


async def _on_kvist_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, KvistError)
    return error_response(error)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    messages = {
        404: f"there is no route {path!r}; the API lies under /v1",
        405: f"{request.method} is not possible on {path!r}",
    }
    headers = dict(error.headers or {})
    return http_error_response(error.status_code, messages.get(error.status_code, error.detail), headers)
