"""What the routes stand on: the engine side once it is ready, and the server's own state around it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvist.config.server_config import ServerConfig
from kvist.core.errors import EngineUnavailableError, ModelNotFoundError
from kvist.metrics.prometheus import EngineFacts
from kvist.metrics.recorder import MetricsRecorder
from kvist.runtime.engine_client import EngineClient
from kvist.runtime.generation import TextGenerator
from kvist.server.identity import ApiKeys

LONG_TEXT_CHARS = 4096  # above this a prompt is encoded in a thread: the tokenizer releases the GIL


class PromptEncoder(Protocol):
    """Text and messages to the token ids that the engine will use, and back. Safe to call from threads."""

    def encode_text(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def encode_messages(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        template_kwargs: Mapping[str, Any],
        add_special_tokens: bool | None = None,
    ) -> list[int]:
        """Render the chat template and encode it; never two BOS. add_special_tokens None: what the template needs."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str: ...

    def token_strings(self, token_ids: Sequence[int]) -> list[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A started engine with its text side. `facts` are shown by metrics and the models route."""

    client: EngineClient
    generator: TextGenerator
    encoder: PromptEncoder
    startup_phases_s: Mapping[str, float] = field(default_factory=dict)
    cache_config: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False, kw_only=True)
class ServerState:
    """One per server. `backend` is None until the engine is ready; only serve.py sets it and `is_draining`."""

    config: ServerConfig
    recorder: MetricsRecorder
    keys: ApiKeys
    wall_time_s: Callable[[], float]
    backend: Backend | None = None
    is_draining: bool = False

    def ready_backend(self) -> Backend:
        """The backend, for a request that needs the engine. Raises EngineUnavailableError (503) with the reason."""
        reason = self.why_not_ready()
        if reason is not None or self.backend is None:
            raise EngineUnavailableError(f"the server is not ready: {reason}. Try again shortly")
        return self.backend

    def why_not_ready(self) -> str | None:
        """None when new requests are served."""
        if self.is_draining:
            return "it is shutting down"
        if self.backend is None:
            return "the model is being loaded"
        status = self.backend.client.status()
        if status.state != "ready":
            return status.reason or f"the engine is {status.state}"
        return None

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
        status = self.backend.client.status()
        return EngineFacts(
            model_name=self.backend.generator.model.served_names[0],
            num_waiting=status.num_waiting,
            num_running=status.num_running,
            num_total_blocks=status.num_total_blocks,
            num_free_blocks=status.num_free_blocks,
            num_evictable_blocks=status.num_evictable_blocks,
            num_restarts=status.num_restarts,
            heartbeat_age_s=status.heartbeat_age_s,
            startup_phases_s=self.backend.startup_phases_s,
            cache_config=self.backend.cache_config,
        )


async def encode_text(encoder: PromptEncoder, text: str, *, add_special_tokens: bool) -> list[int]:
    """Encode without holding up the event loop."""
    if len(text) < LONG_TEXT_CHARS:
        return encoder.encode_text(text, add_special_tokens=add_special_tokens)
    return await asyncio.to_thread(encoder.encode_text, text, add_special_tokens=add_special_tokens)
