"""One running engine and the line to it, as the supervising client sees it: in a thread or in a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kvist.runtime.engine_client import EngineInfo
from kvist.runtime.messages import Command, StartPhase, Turn


class LinkEvents(Protocol):
    """Where a link reports to. All methods are called on the client's asyncio loop."""

    def on_turn(self, turn: Turn) -> None: ...

    def on_start_phase(self, phase: StartPhase) -> None: ...

    def on_lost(self, reason: str) -> None:
        """The engine, once ready, is gone for good. Called at most once, and not after `EngineLink.stop`."""
        ...


class EngineLink(Protocol):
    """Used once: start, send, stop."""

    async def start(self, events: LinkEvents) -> EngineInfo:
        """Start an engine; return when it is ready. Raises what it raised, or EngineUnavailableError if it died."""
        ...

    def send(self, command: Command) -> None:
        """Queue a command. Dropped silently if the engine is gone: `on_lost` tells."""
        ...

    async def stop(self) -> None:
        """End the engine, by force if it does not end by itself soon. Safe in any state, also twice."""
        ...


LinkFactory = Callable[[], EngineLink]
