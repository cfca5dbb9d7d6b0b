"""What the routes stand on: the engine side once it is ready, and the server's own state around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kvist.config.server_config import ServerConfig
from kvist.core.errors import EngineUnavailableError, ModelNotFoundError
from kvist.core.request_events import EventBatch
from kvist.metrics.prometheus import EngineFacts
from kvist.metrics.recorder import MetricsRecorder
from kvist.metrics.timelines import Timelines
from kvist.runtime.engine_client import EngineClient
from kvist.runtime.engine_facts import facts_of
from kvist.runtime.generation import TextGenerator
from kvist.server.call_owners import CallOwners
from kvist.server.identity import ApiKeys
from kvist.tokenization.text_encoder import TextEncoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A started engine with its text side. `facts` are shown by metrics and the models route."""

    client: EngineClient
    generator: TextGenerator
    encoder: TextEncoder
    startup_phases_s: Mapping[str, float] = field(default_factory=dict)
    cache_config: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False, kw_only=True)
class ServerState:
    """One per server. `backend` is None until the engine is ready; only serve.py sets it and `is_draining`."""

    config: ServerConfig
    recorder: MetricsRecorder
    keys: ApiKeys
    wall_time_s: Callable[[], float]
    timelines: Timelines = field(default_factory=Timelines)
    owners: CallOwners = field(default_factory=CallOwners)
    backend: Backend | None = None
    is_draining: bool = False
    started_s: int = field(init=False)

    def __post_init__(self) -> None:
        self.started_s = int(self.wall_time_s())

    def on_events(self, batch: EventBatch) -> None:
        """Listener for the engine's events."""
        self.recorder.record(batch)
        self.timelines.record(batch)

    def ready_backend(self) -> Backend:
        """The backend, for a request that needs the engine. Raises EngineUnavailableError (503) with the reason."""
        reason = self.why_not_ready()
        if reason is not None or self.backend is None:
            is_dead = self.backend is not None and self.backend.client.status().state == "dead"
            raise EngineUnavailableError(f"the server is not ready: {reason}", comes_back=not is_dead)
        return self.backend

    def why_not_ready(self) -> str | None:
        """None when new requests are served."""
        if self.is_draining:
            return "it is shutting down"
        if self.backend is None:
            return "the model is being loaded. Try again shortly"
        status = self.backend.client.status()
        if status.state == "ready":
            return None
        reason = status.reason or f"the engine is {status.state}"
        return f"{reason}. Try again shortly" if status.state == "starting" else reason

    def backend_for(self, model: str | None) -> Backend:
        """The backend, if it serves `model`. Raises ModelNotFoundError (404) otherwise; None means the only one."""
        backend = self.ready_backend()
        names = backend.generator.model.served_names
        if model is not None and model not in names:
            raise ModelNotFoundError(f"the model {model[:200]!r} is not served here; there is {', '.join(names)}")
        return backend

    def engine_facts(self) -> EngineFacts:
        if self.backend is None:
            return EngineFacts(model_name="")
        return facts_of(
            self.backend.client.status(),
            model_name=self.backend.generator.model.served_names[0],
            startup_phases_s=self.backend.startup_phases_s,
            cache_config=self.backend.cache_config,
        )
