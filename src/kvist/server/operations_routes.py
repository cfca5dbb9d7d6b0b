"""Routes for those who run the server: liveness, readiness, models, metrics, version, the cache."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from kvist.core.errors import EngineUnavailableError
from kvist.core.sampling_params import SamplingParams
from kvist.core.version import __version__
from kvist.metrics import prometheus
from kvist.metrics.prometheus_text import CONTENT_TYPE
from kvist.server.backend import Backend, ServerState
from kvist.server.error_responses import error_response

# A step aims at a tenth of a second and takes seconds at worst; a loop silent for this long is stuck.
MAX_HEARTBEAT_AGE_S = 60.0

_BUILT_IN = SamplingParams()
BUILT_IN_SAMPLING: dict[str, float | int] = {
    name: getattr(_BUILT_IN, name) for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
}


def _json(answer: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(answer), status, media_type="application/json")


def why_dead(state: ServerState) -> str | None:
    """Why the server should be restarted; None while it lives. Starting, draining and busy are not dead."""
    if state.backend is None:
        return None
    status = state.backend.client.status()
    if status.state == "dead":
        return status.reason or "the engine is dead"
    if status.state == "ready" and status.heartbeat_age_s > MAX_HEARTBEAT_AGE_S:
        return f"the step loop has not turned for {status.heartbeat_age_s:.0f} s"
    return None


async def health(request: Request) -> Response:
    """Liveness: 200 while the step loop turns, however busy; 503 with the reason when it is stuck or dead."""
    reason = why_dead(request.app.state.server)
    if reason is not None:
        return error_response(EngineUnavailableError(reason))
    return _json({"status": "ok"})


async def ready(request: Request) -> Response:
    """Readiness: 200 when new requests are served; 503 with the reason while starting or draining."""
    state: ServerState = request.app.state.server
    reason = why_dead(state) or state.why_not_ready()
    if reason is not None:
        return error_response(EngineUnavailableError(reason))
    return _json({"status": "ready"})


async def version(request: Request) -> Response:
    return _json({"version": __version__})


async def metrics(request: Request) -> Response:
    state: ServerState = request.app.state.server
    text = prometheus.render(state.recorder, state.engine_facts(), vllm_names=state.config.vllm_metrics)
    return Response(text, media_type=CONTENT_TYPE)


async def list_models(request: Request) -> Response:
    state: ServerState = request.app.state.server
    backend = state.ready_backend()
    names = backend.generator.model.served_names
    return _json({"object": "list", "data": [_model(backend, name, state) for name in names]})


async def get_model(request: Request) -> Response:
    state: ServerState = request.app.state.server
    name: str = request.path_params["model"]
    return _json(_model(state.backend_for(name), name, state))


async def reset_prefix_cache(request: Request) -> Response:
    state: ServerState = request.app.state.server
    is_empty = await state.ready_backend().client.reset_prefix_cache()
    return _json({"is_empty": is_empty})


async def start_profile(request: Request) -> Response:
    """Begin the step trace that --trace names."""
    state: ServerState = request.app.state.server
    return _json({"file": await state.ready_backend().client.start_profile()})


async def stop_profile(request: Request) -> Response:
    state: ServerState = request.app.state.server
    return _json({"file": await state.ready_backend().client.stop_profile()})


def _model(backend: Backend, name: str, state: ServerState) -> dict[str, object]:
    model = backend.generator.model
    return {
        "id": name,
        "object": "model",
        "created": state.started_s,
        "owned_by": "kvist",
        "root": model.name,
        "parent": None,
        "max_model_len": model.max_model_len,
        "default_sampling_params": {**BUILT_IN_SAMPLING, **model.default_sampling},
    }
